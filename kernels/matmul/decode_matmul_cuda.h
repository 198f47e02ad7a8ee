#ifndef RECURVE_KERNELS_MATMUL_DECODE_MATMUL_CUDA_H_
#define RECURVE_KERNELS_MATMUL_DECODE_MATMUL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/weight_type.h"

namespace recurve {

// y = x · wᵀ, or y += that, for the rows of a decode step on the GPU: the
// weights stream by once, split over the inputs between the warps of a block.
//
// Products are of 16-bit factors (float32 x is rounded to the type of w), sums
// are float32. The order of a sum depends on `inputs` alone: a row's bits are
// the same whatever rows stand beside it, and however many.
//
// Every pointer is device memory, 16-byte aligned. Neither allocates nor
// synchronises.
struct DecodeMatmulParams {
  WeightType type;  // of w: kBFloat16 or kFloat16
  const void* w;    // [outputs, inputs]; zeros from the last input on
  int64_t outputs;
  int64_t inputs;    // a multiple of kDecodeMatmulInputs
  const void* x;     // [rows, inputs] of `type`, or float32
  bool x_is_float;   // then x has x_cols columns, the others count as 0, and
                     // there are at most kDecodeMatmulFloatRows rows
  int64_t x_cols;    // <= inputs
  int64_t x_stride;  // elements; a multiple of 8, of 4 for float32
  float* y;          // [rows, outputs]
  int64_t y_stride;
  int64_t rows;
  bool add;
};
inline constexpr int64_t kDecodeMatmulInputs = 32;
inline constexpr int64_t kDecodeMatmulFloatRows = 8;

// cudaErrorInvalidValue for what the comments above rule out.
cudaError_t LaunchDecodeMatmul(const DecodeMatmulParams& params,
                               cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_MATMUL_CUDA_H_
