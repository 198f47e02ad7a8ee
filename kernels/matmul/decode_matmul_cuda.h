#ifndef RECURVE_KERNELS_MATMUL_DECODE_MATMUL_CUDA_H_
#define RECURVE_KERNELS_MATMUL_DECODE_MATMUL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/weight_type.h"
#include "kernels/matmul/decode_matmul_plan.h"
#include "kernels/norm/norm_order.h"

namespace recurve {

// y = x · wᵀ, or y += that, on the GPU: for the rows of a decode step, which
// stream the weights once, and for short prompts; with a gate, for prompts of
// any length.
//
// Factors are 16-bit (float32 x is rounded to the type of w), sums float32. The
// order of a sum depends on the matrix's sizes and the device alone: a row's
// bits do not depend on the other rows or their number, nor on whether
// operations marked "fused" are done here or by separate kernels.
//
// Every pointer is device memory, 16-byte aligned. Neither allocates nor
// synchronises.
struct DecodeMatmulParams {
  WeightType type;  // of w: kBFloat16 or kFloat16
  const void* w;    // [outputs, inputs]; zeros from the last input on
  int64_t outputs;
  int64_t inputs;    // a multiple of kDecodeMatmulInputs
  const void* x;     // [rows, x_cols] of `type`, or float32
  bool x_is_float;   // then there are at most kDecodeMatmulFloatRows rows
  int64_t x_cols;    // <= inputs; the others count as 0
  int64_t x_stride;  // elements; a multiple of 8, of 4 for float32
  float* y;          // [rows, outputs]; of `gate`, [rows, outputs / 2]
  int64_t y_stride;  // elements
  int64_t rows;      // at most kDecodeMatmulMaxRows
  bool add;

  // Fused; see DecodeMatmulFuses. All off: null and false.

  // RMSNorm of x (norm_cuda.h, in one group) before it is rounded. x is
  // float32, x_cols are more than kNormWarpCols.
  bool norm = false;
  const float* norm_weight = nullptr;  // [x_cols], 16-byte aligned; null: none
  float norm_eps = 0;
  // y = act(first half of the outputs) ⊙ second half, as glu_cuda.h. Without
  // `add`; outputs are even, the activation is pointwise.
  bool gate = false;
  Activation activation = Activation::kNone;
  // With `gate`: y is of `type`, as the next product takes it, not float32.
  bool y_is_half = false;
};
inline constexpr int64_t kDecodeMatmulMaxRows = 1 << 20;

// Whether the current device does the operations marked "fused".
bool DecodeMatmulFuses();
// Whether it takes float32 x with this many inputs and rows.
bool DecodeMatmulTakesFloats(int64_t inputs, int64_t rows);

// cudaErrorInvalidValue for what the comments above rule out.
cudaError_t LaunchDecodeMatmul(const DecodeMatmulParams& params,
                               cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_MATMUL_CUDA_H_
