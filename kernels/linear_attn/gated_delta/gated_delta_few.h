#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_FEW_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_FEW_H_

#include <cuda_runtime_api.h>

#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"

namespace recurve {

// The form of LaunchGatedDeltaStep for few heads, with the same bits, in blocks
// of `columns`. REQUIRES: what LaunchGatedDeltaStep checks; `columns` of
// DeltaFewColumns; q, k and last inputs aligned to pairs of elements in every
// row and slot, weights of the convolution to 16 bytes.
cudaError_t LaunchGatedDeltaFew(const GatedDeltaStepParams& params, int columns,
                                bool early, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_FEW_H_
