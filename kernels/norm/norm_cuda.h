#ifndef RECURVE_KERNELS_NORM_NORM_CUDA_H_
#define RECURVE_KERNELS_NORM_NORM_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/element_type.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// RMSNorm and the gated norm on the GPU: the maths of kernels/norm/norm.h, in
// float32, with every pointer in device memory. A norm with eps on the sum of
// squares is this one with eps / (cols / groups).
//
// A row's bits depend on that row alone. Neither allocates nor synchronises.
struct CudaRmsNormParams {
  ElementType type;  // of x, gate and y
  const void* x;     // [rows, cols]
  int64_t x_stride;
  const float* weight;  // [cols], or null for none
  void* y;              // [rows, cols]; may be x
  int64_t y_stride;
  int64_t rows;              // of the launch; rows · groups at most INT32_MAX
  const int32_t* live_rows;  // [1] rows to do, null: all
  int64_t cols;              // a multiple of groups
  int64_t groups;            // >= 1
  float eps;                 // added to the mean of squares
};

// cudaErrorInvalidValue for negative rows, cols below 1, or groups that do not
// divide cols.
cudaError_t LaunchRmsNorm(const CudaRmsNormParams& params, cudaStream_t stream);

// The same with x in float32, and y rounded once to `y_type`, of 16 bits.
cudaError_t LaunchRoundedRmsNorm(const CudaRmsNormParams& params,
                                 WeightType y_type, cudaStream_t stream);

// Gate before the norm: y = RMSNorm(x ⊙ act(gate)); after it: y = RMSNorm(x) ⊙
// act(gate).
struct CudaGatedNormParams {
  CudaRmsNormParams norm;
  const void* gate;  // [rows, cols]; may be y
  int64_t gate_stride;
  Activation activation;  // pointwise, else cudaErrorInvalidValue
  bool gate_after_norm;
};
cudaError_t LaunchGatedNorm(const CudaGatedNormParams& params,
                            cudaStream_t stream);

// The same with x and gate in float32, and y, which must be neither of them,
// rounded once to `y_type`, of 16 bits.
cudaError_t LaunchRoundedGatedNorm(const CudaGatedNormParams& params,
                                   WeightType y_type, cudaStream_t stream);

// LayerNorm, as kernels/norm/norm.h, in float32.
struct CudaLayerNormParams {
  const float* x;  // [rows, cols]
  int64_t x_stride;
  const float* weight;  // [cols], or null for none
  const float* bias;    // [cols], or null for none
  float* y;             // [rows, cols]; may be x
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
  float eps;  // added to the variance
};
// cudaErrorInvalidValue for negative rows or cols below 1.
cudaError_t LaunchLayerNorm(const CudaLayerNormParams& params,
                            cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_NORM_NORM_CUDA_H_
