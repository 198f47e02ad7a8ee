// Activation of one token, spread over lanes: device functions.
#ifndef RECURVE_KERNELS_LRPE_LRPE_DEVICE_CUH_
#define RECURVE_KERNELS_LRPE_LRPE_DEVICE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe.h"

namespace recurve {
namespace lrpe {

// A token's lanes, a power of two; a lane has kVector features of the first
// half of a head and their partners of the second.
inline int LanesPerToken(int64_t dim, int vector) {
  int lanes = 1;
  while (lanes * 2 * vector < dim) lanes *= 2;
  return lanes;
}

template <int kCount>
__device__ __forceinline__ void ActivateAll(Activation activation,
                                            float (&x)[kCount]) {
  if (activation == Activation::kNone) return;
  if (activation == Activation::kSilu) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      x[j] *= __fdividef(1.0f, 1.0f + FastExp(-x[j]));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) x[j] = DeviceActivate(activation, x[j]);
}

// Softmax over the features, of which each of `lanes` lanes has two runs.
template <int kVector>
__device__ __forceinline__ void SoftmaxFeatures(int lanes, bool active,
                                                float (&x1)[kVector],
                                                float (&x2)[kVector]) {
  float max = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (active) max = fmaxf(max, fmaxf(x1[j], x2[j]));
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x1[j] = FastExp(x1[j] - max);
    x2[j] = FastExp(x2[j] - max);
    if (active) sum += x1[j] + x2[j];
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  const float scale = __fdividef(1.0f, sum);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x1[j] *= scale;
    x2[j] *= scale;
  }
}

}  // namespace lrpe
}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_DEVICE_CUH_
