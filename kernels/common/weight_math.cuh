// Loads and stores of weight types (weight_type.h). Device code only.
#ifndef RECURVE_KERNELS_COMMON_WEIGHT_MATH_CUH_
#define RECURVE_KERNELS_COMMON_WEIGHT_MATH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/common/weight_type.h"

namespace recurve {

__device__ __forceinline__ float WeightToFloat(float x) { return x; }
__device__ __forceinline__ float WeightToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float WeightToFloat(__half x) {
  return __half2float(x);
}

__device__ __forceinline__ void FloatToWeight(float x, float* y) { *y = x; }
__device__ __forceinline__ void FloatToWeight(float x, __nv_bfloat16* y) {
  *y = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void FloatToWeight(float x, __half* y) {
  *y = __float2half_rn(x);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_WEIGHT_MATH_CUH_
