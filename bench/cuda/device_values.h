#ifndef RECURVE_BENCH_CUDA_DEVICE_VALUES_H_
#define RECURVE_BENCH_CUDA_DEVICE_VALUES_H_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {

// What benchmarks compare with float64 before they time anything.

// `count` elements of the device's memory.
template <typename T>
std::vector<T> HostCopy(const T* from, int64_t count) {
  std::vector<T> host(count);
  RECURVE_CUDA_OK(
      cudaMemcpy(host.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

inline double ToDouble(float value) { return value; }
// A bfloat16.
inline double ToDouble(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// The norm of the difference, relative to that of `want`; got
// [want.size()]. NaN and infinities give no number below any limit.
template <typename T>
double RelativeError(const T* got, const std::vector<double>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = ToDouble(got[i]) - want[i];
    error += difference * difference;
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_DEVICE_VALUES_H_
