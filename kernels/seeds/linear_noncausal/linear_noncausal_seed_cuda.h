#ifndef RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_SEED_CUDA_H_
#define RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_SEED_CUDA_H_

#include <cuda_runtime_api.h>

#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"

namespace recurve {

// LaunchLinearNoncausal for every kind of layer that its parameters can state:
// also with kRotate inside the kernel, and with softmax over the sequence,
// which the server never asks for (it encodes before, and has no such layer).
// Those need no workspace. The same errors.
cudaError_t LaunchLinearNoncausalSeed(const LinearNoncausalParams& params,
                                      cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_SEED_CUDA_H_
