#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_DIMS_H_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_DIMS_H_

#include <cstdint>

namespace recurve {

// Head dimensions of q, k and v that the GPU's kernels of whole prompts and of
// 16-bit factors take.
inline constexpr int kLinearMaxHeadDim = 256;
constexpr bool ValidLinearDim(int64_t dim) {
  return dim >= 8 && dim <= kLinearMaxHeadDim && dim % 8 == 0;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_DIMS_H_
