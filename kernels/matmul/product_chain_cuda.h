#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// Blocks of the previous kernel that work to its end, while others end at once:
// `times` the count of those up to *last, which is device memory (-1: none),
// written before that kernel began, as it is read before it is done. Null:
// unknown.
struct WorkingBlocks {
  const int32_t* last = nullptr;
  int times = 1;
  // Whether it is attention in clusters, as the next attention will be: then
  // launches of up to two rows copy further ahead, and its multiprocessors are
  // freed early (ChainPace, ChainNextTile).
  bool clusters = false;
};

// The products of 1, 2 or 4 rows between two attentions, in one launch on
// Hopper:
//
//   residual += x · outᵀ
//   residual += (act(g) ⊙ u) · downᵀ,  (g, u) = RMSNorm(residual) · upᵀ
//   y = RMSNorm(residual) · nextᵀ      the next layer's, if any
//
// with the bits, row by row, of LaunchDecodeMatmul with `norm` and `gate`, one
// after the other: parts, chains and norms have the same order of sums
// (decode_matmul_order.h), and the same values are rounded to `type`.
//
// Its blocks wait for each other; product_chain.cu says why that is safe. No
// other kernel whose blocks do (this one, LaunchTpaDecode in kParallelBn) may
// run at the same time on the device, from another stream.
//
// Every pointer is device memory, 16-byte aligned. Neither allocates nor
// synchronises.
struct ProductChainParams {
  WeightType type;  // of all matrices: kBFloat16 or kFloat16
  int64_t rows;     // 1, 2 or 4
  int64_t width;    // of the residual

  const void* x;       // [rows, x_cols] of `type`
  int64_t x_stride;    // elements; a multiple of 8, of one row any
  int64_t x_cols;      // <= out_inputs; the others count as 0
  const void* out;     // [width, out_inputs]
  int64_t out_inputs;  // as the other inputs, a multiple of 64; zeros from the
                       // last column on
  float* residual;     // [rows, width]
  int64_t residual_stride;

  const float* up_norm;  // [width], or null for none
  float up_eps;
  const void* up;  // [2 · features, up_inputs]
  int64_t up_inputs;
  int64_t features;
  Activation activation;  // pointwise
  const void* down;       // [width, down_inputs]
  int64_t down_cols;      // <= features; the others count as 0
  int64_t down_inputs;

  const float* next_norm;  // [width], or null for none
  float next_eps;
  const void* next;  // [next_outputs, next_inputs], or null for no y
  int64_t next_outputs;
  int64_t next_inputs;
  float* y;  // [rows, next_outputs]
  int64_t y_stride;

  // Changes no bits, only which blocks multiply what: those on these
  // multiprocessors start last.
  WorkingBlocks working;

  // kProductChainExchangeBytes, each 0xff before the first launch; consecutive
  // launches share it.
  void* exchange;
};

inline constexpr int64_t kProductChainExchangeBytes = 7 << 17;

// Whether the current device runs such launches at all: a Hopper, and not under
// MPS, where another process may hold multiprocessors that the blocks need.
bool ProductChainRuns();

// Whether the current device does these products in one launch, by sizes and
// kinds (PlanProductChain). y is not checked.
bool ProductChainTakes(const ProductChainParams& params);

// cudaErrorInvalidValue where ProductChainTakes is false.
cudaError_t LaunchProductChain(const ProductChainParams& params,
                               cudaStream_t stream);

// Launches of this process, captured ones included: for tests.
int64_t ProductChainLaunches();

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_
