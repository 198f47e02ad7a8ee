// q̃, k̃ and ṽ of linear attention, element by element, for kernels that compute
// in float32 from the tables of angles.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_VECTORS_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_VECTORS_CUH_

#include "kernels/common/activation.h"
#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Terms of the softmax of a row.
struct SoftmaxTerms {
  float max;
  float sum;
};

// By one warp: those of x[0 .. n).
__device__ inline SoftmaxTerms WarpSoftmax(const float* x, int n) {
  const int lane = threadIdx.x % 32;
  float max = -INFINITY;
  for (int i = lane; i < n; i += 32) max = fmaxf(max, x[i]);
  max = LaneMax(max);
  float sum = 0.0f;
  for (int i = lane; i < n; i += 32) sum += expf(x[i] - max);
  return {max, LaneSum(sum)};
}

__device__ __forceinline__ float Apply(Activation activation,
                                       const SoftmaxTerms& softmax, float x) {
  return activation == Activation::kSoftmax
             ? expf(x - softmax.max) / softmax.sum
             : DeviceActivate(activation, x);
}

// Element i of an encoded vector, from the activated one.
__device__ __forceinline__ float Encode(LrpeType type, const float* x, int i,
                                        int dim, const float* cos,
                                        const float* sin) {
  switch (type) {
    case LrpeType::kNone:
      return x[i];
    case LrpeType::kRotate: {
      const int half = dim / 2;
      const int k = i < half ? i : i - half;
      return i < half ? __fsub_rn(__fmul_rn(x[k], cos[k]),
                                  __fmul_rn(x[half + k], sin[k]))
                      : __fadd_rn(__fmul_rn(x[k], sin[k]),
                                  __fmul_rn(x[half + k], cos[k]));
    }
    case LrpeType::kCosine:
      return i < dim ? x[i] * cos[i] : x[i - dim] * sin[i - dim];
  }
  return 0.0f;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_VECTORS_CUH_
