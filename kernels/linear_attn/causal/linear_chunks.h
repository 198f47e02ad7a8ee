#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_H_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_H_

#include <cuda_runtime_api.h>

#include "kernels/linear_attn/causal/linear_prefill_cuda.h"

namespace recurve {

// Whether LaunchLinearChunks supports the parameters: q, k and v of bfloat16
// that are factors as they are (no activation, no encoding), D at most 128.
// Depends on the shape of a layer alone, never on the batch.
bool LinearChunksDoes(const LinearPrefillParams& params);

// LaunchLinearPrefill for what LinearChunksDoes, after its checks; the same
// errors.
cudaError_t LaunchLinearChunks(const LinearPrefillParams& params,
                               int multiprocessors, int shared_limit,
                               cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_H_
