#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STREAM_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STREAM_H_

#include <cuda_runtime_api.h>

#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"

namespace recurve {

// The form of LaunchGatedDeltaStep for many heads, with the same bits.
// REQUIRES: what LaunchGatedDeltaStep checks; DeltaStepStreams.
cudaError_t LaunchGatedDeltaStream(const GatedDeltaStepParams& params,
                                   bool early, int multiprocessors,
                                   cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STREAM_H_
