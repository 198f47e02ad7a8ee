#ifndef RECURVE_KERNELS_NORM_NORM_CUDA_H_
#define RECURVE_KERNELS_NORM_NORM_CUDA_H_

#include <cuda_runtime_api.h>

#include "kernels/norm/norm.h"

namespace recurve {

// RMSNorm on the GPU: kernels/norm/norm.h with every pointer in device memory.
//
// One block a row; squares are summed in float32 in an order that depends on
// `cols` and `groups` only, so a row's bits depend on that row alone. Neither
// allocates nor synchronises, so it may be captured in a graph.
//
// cudaErrorInvalidValue when sizes make no sense: negative rows, cols below 1,
// or groups that do not divide cols.
cudaError_t LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_NORM_NORM_CUDA_H_
