#ifndef RECURVE_KERNELS_TPA_APPEND_EXPAND_FACTORS_CUDA_H_
#define RECURVE_KERNELS_TPA_APPEND_EXPAND_FACTORS_CUDA_H_

#include <cuda_runtime_api.h>

#include "kernels/tpa/append/expand_factors.h"

namespace recurve {

// kernels/tpa/append/expand_factors.h on the GPU: every pointer of `params` is
// device memory. Neither allocates nor synchronises. cudaErrorInvalidValue for
// negative rows, or rank, num_heads or dim below 1.
cudaError_t LaunchExpandFactors(const ExpandFactorsParams& params,
                                cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_APPEND_EXPAND_FACTORS_CUDA_H_
