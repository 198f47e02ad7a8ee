#ifndef RECURVE_KERNELS_EMBEDDING_EMBEDDING_CUDA_H_
#define RECURVE_KERNELS_EMBEDDING_EMBEDDING_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/weight_type.h"

namespace recurve {

// y[i] = scale · table[tokens[i]] on the GPU, as kernels/embedding/embedding.h.
// Every pointer is device memory. Neither allocates nor synchronises.
struct CudaEmbedParams {
  WeightType type;        // of the table
  const void* table;      // [vocab, cols], dense
  int64_t vocab;          // a token outside [0, vocab) gives zeros
  const int32_t* tokens;  // [rows]
  // [rows], or null. Where not negative, the row's token is fed[sources[i] ·
  // fed_stride].
  const int32_t* sources;
  const int32_t* fed;
  int64_t fed_stride;
  float* y;  // [rows, cols]
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
  float scale;
};
// cudaErrorInvalidValue for negative rows, cols or vocab below 1, or sources
// without `fed`.
cudaError_t LaunchEmbed(const CudaEmbedParams& params, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_EMBEDDING_EMBEDDING_CUDA_H_
