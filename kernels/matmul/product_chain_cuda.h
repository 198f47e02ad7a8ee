#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/weight_type.h"
#include "kernels/matmul/product_chain_plan.h"

namespace recurve {

struct ProductChainParams {
  WeightType type;
  int64_t rows;
  int64_t width;  // of the residual

  const void* x;  // [rows, x_cols] of type
  int64_t x_cols;
  int64_t x_stride;
  const void* out;  // [width, out_inputs]
  int64_t out_inputs;
  float* residual;  // [rows, width]
  int64_t residual_stride;

  const float* up_norm;  // [width] or null
  float up_eps;
  const void* up;  // [2 * features, up_inputs]
  int64_t up_inputs;
  int64_t features;
  Activation activation;
  const void* down;  // [width, down_inputs]
  int64_t down_cols;
  int64_t down_inputs;

  const float* next_norm;
  float next_eps;
  const void* next;  // [next_outputs, next_inputs]; null: none
  int64_t next_outputs;
  int64_t next_inputs;
  float* y;
  int64_t y_stride;

  void* exchange;

  // Trial.
  int window = 2;
  int prefetch = 0;
  int prefetch_gap = 0;
  int boxes = 1;
  int wait = 1;
  long long* stamps = nullptr;
};

// Of exchange, zeros before its first launch. (8 rows of 2048 and 2048 words,
// and of 8448 / 2 of two features.)
inline constexpr int64_t kProductChainExchangeBytes = int64_t{1} << 20;

bool ProductChainTakes(const ProductChainParams& params);
cudaError_t LaunchProductChain(const ProductChainParams& params,
                               cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_
