#ifndef RECURVE_KERNELS_SAMPLING_GREEDY_CUDA_H_
#define RECURVE_KERNELS_SAMPLING_GREEDY_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace recurve {

// The token that SampleRow (sampling.h) takes at temperature 0 and without
// penalties or bias: of the largest logit, the smallest id among equals.
// Pointers are device memory. Neither allocates nor synchronises.
inline constexpr int32_t kNonFiniteLogits = -1;
struct CudaGreedyParams {
  const float* logits;  // [rows, vocab]
  int64_t stride;       // elements between rows
  int64_t rows;
  int64_t vocab;
  int32_t* tokens;  // [rows]; kNonFiniteLogits for a row with a NaN or +Inf, or
                    // with nothing but -Inf
};
// cudaErrorInvalidValue for negative rows, or vocab outside 1 to INT32_MAX.
cudaError_t LaunchGreedy(const CudaGreedyParams& params, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_GREEDY_CUDA_H_
