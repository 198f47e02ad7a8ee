#ifndef RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_CUDA_H_

#include <cuda_runtime_api.h>

#include "kernels/linear_attn/linear_attn.h"
#include "kernels/linear_attn/scan/linear_scan_limits.h"

namespace recurve {

// kernels/linear_attn/linear_attn.h on the GPU: one update a token, in order,
// in float32, for any sizes. The state of a head stays in registers for all its
// tokens. Prompt and decode have the same arithmetic, so a prompt gives the
// same bits for any cuts, and a row the same bits in any batch.
//
// Every pointer is device memory; arguments do not change from step to step.
// Slot 0 is the sink: its state is neither read nor written, and the outputs of
// its rows are 0.

// A dependent launch (dependent_launch.cuh). `early`: states, slots,
// query_start and decay may be read before the previous kernel in the stream is
// done: they were written before the last kernel that was not launched
// dependently (in a step, the embedding's).
//
// cudaErrorInvalidValue for sizes below 1 or above those of
// linear_scan_limits.h, more than 65535 heads or sequences, an odd head_dim to
// rotate, or a missing pointer.
cudaError_t LaunchLinearScan(const LinearAttentionParams& params, bool early,
                             cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_CUDA_H_
