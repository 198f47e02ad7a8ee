// Rows of ElementType on the CPU, read and written as float32.
#ifndef RECURVE_KERNELS_COMMON_ELEMENT_ROW_H_
#define RECURVE_KERNELS_COMMON_ELEMENT_ROW_H_

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "kernels/common/element_type.h"

namespace recurve {

// out[0 .. n) = x[first .. first + n).
inline void LoadElements(ElementType type, const void* x, int64_t first,
                         int64_t n, float* out) {
  if (type == ElementType::kFloat32) {
    std::memcpy(out, static_cast<const float*>(x) + first, n * sizeof(float));
    return;
  }
  const uint16_t* halves = static_cast<const uint16_t*>(x) + first;
  for (int64_t i = 0; i < n; ++i) out[i] = BFloat16ToFloat(halves[i]);
}

// y[first .. first + n) = in[0 .. n), rounded once.
inline void StoreElements(ElementType type, const float* in, int64_t n, void* y,
                          int64_t first) {
  if (type == ElementType::kFloat32) {
    std::memcpy(static_cast<float*>(y) + first, in, n * sizeof(float));
    return;
  }
  uint16_t* halves = static_cast<uint16_t*>(y) + first;
  for (int64_t i = 0; i < n; ++i) halves[i] = FloatToBFloat16(in[i]);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_ELEMENT_ROW_H_
