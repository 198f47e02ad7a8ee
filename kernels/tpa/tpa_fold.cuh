// How partial results of attention merge, on the GPU. One arithmetic for
// registers and memory: see tpa_chunks.h.
#ifndef RECURVE_KERNELS_TPA_TPA_FOLD_CUH_
#define RECURVE_KERNELS_TPA_TPA_FOLD_CUH_

#include "kernels/common/mma.cuh"

namespace recurve {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();

// Log-sum-exp merge of a running result with the next: each is an output that
// has been weighed by 2^(score - max), the sum of those weights, and max. What
// saw no token has max -inf and changes nothing.
struct FoldScales {
  float running;
  float next;
};
__device__ __forceinline__ FoldScales ScalesFor(float running_max,
                                                float next_max,
                                                float merged_max) {
  const float base = merged_max == kMinusInfinity ? 0.0f : merged_max;
  return {Exp2(running_max - base), Exp2(next_max - base)};
}
__device__ __forceinline__ float Fold(float running, float next,
                                      FoldScales scales) {
  return __fmaf_rn(running, scales.running, __fmul_rn(next, scales.next));
}

// What an output is multiplied with in the end. Nothing seen: zero.
__device__ __forceinline__ float Normalizer(float sum, int kv_rank) {
  return sum == 0.0f
             ? 0.0f
             : __fdiv_rn(1.0f, __fmul_rn(sum, static_cast<float>(kv_rank)));
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_FOLD_CUH_
