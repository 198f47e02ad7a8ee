#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_H_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"

namespace recurve {

// Whether the parameters are complete and within the limits, whichever kernel
// is to take them.
bool ValidLinearNoncausal(const LinearNoncausalParams& params);

// Whether LaunchLinearNoncausalRing supports the parameters: no encoding or
// cosine, and no softmax over the sequence. Depends on the kind of a layer
// alone, never on the batch.
bool LinearNoncausalRingDoes(const LinearNoncausalParams& params);

// LinearNoncausalWorkspaceBytes for what LinearNoncausalRingDoes.
int64_t LinearNoncausalRingWorkspaceBytes(const LinearNoncausalParams& params);

// LaunchLinearNoncausal for what LinearNoncausalRingDoes, after its checks; the
// same errors.
cudaError_t LaunchLinearNoncausalRing(const LinearNoncausalParams& params,
                                      cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_H_
