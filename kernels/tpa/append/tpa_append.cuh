// Key and value factors as they are written to the cache, by the append and by
// decode that appends: device functions.
#ifndef RECURVE_KERNELS_TPA_APPEND_TPA_APPEND_CUH_
#define RECURVE_KERNELS_TPA_APPEND_TPA_APPEND_CUH_

#include "kernels/common/device_math.cuh"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

// DeviceActivate, but with the CPU's division instead of a faster one: cached
// values are read at every later step.
__device__ __forceinline__ float TpaActivateFactor(Activation activation,
                                                   float x) {
  if (activation == Activation::kSilu) return x / (1.0f + expf(-x));
  if (activation == Activation::kSigmoid) return 1.0f / (1.0f + expf(-x));
  return DeviceActivate(activation, x);
}

// Element `d` of the encoded B_k row `x`, of D = `dim`. Without branches, so
// that its loads are issued together with all others.
__device__ __forceinline__ float TpaEncodeKey(const TpaCudaFactors& f, int dim,
                                              int64_t row, const float* x,
                                              int d) {
  if (f.position == LrpeType::kNone) return x[d];
  const int half = dim / 2;
  const bool first = d < half;
  const int k = first ? d : d - half;
  const float c = f.cos[row * half + k];
  const float s = f.sin[row * half + k];
  const float x1 = x[k];
  const float x2 = x[half + k];
  const float low = __fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s));
  const float high = __fadd_rn(__fmul_rn(x1, s), __fmul_rn(x2, c));
  return first ? low : high;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_APPEND_TPA_APPEND_CUH_
