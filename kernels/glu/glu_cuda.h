#ifndef RECURVE_KERNELS_GLU_GLU_CUDA_H_
#define RECURVE_KERNELS_GLU_GLU_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/element_type.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// The gate of a gated linear unit on the GPU: y = act(x1) ⊙ x2, as
// kernels/glu/glu.h. Every pointer is device memory; arithmetic is in float32.
// Neither allocates nor synchronises.
struct CudaGluParams {
  ElementType type;  // of x and y
  const void* x;     // [rows, 2 · cols]: x1, then x2
  int64_t x_stride;
  void* y;  // [rows, cols]; must not overlap x
  int64_t y_stride;
  int64_t rows;              // of the launch, at most 65535
  const int32_t* live_rows;  // [1] rows to do, null: all
  int64_t cols;
  Activation activation;  // pointwise, else cudaErrorInvalidValue
};
cudaError_t LaunchGlu(const CudaGluParams& params, cudaStream_t stream);

// The same with x in float32, and y rounded once to `y_type`, of 16 bits.
cudaError_t LaunchRoundedGlu(const CudaGluParams& params, WeightType y_type,
                             cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_GLU_GLU_CUDA_H_
