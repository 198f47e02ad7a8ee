#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/weight_type.h"

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
  int window;
  int prefetch;
  int prefetch_gap;
  int boxes;  // 1, 2; 3: 1 with promotion
  int wait;   // 0: for timing alone
  long long* stamps;
};

int64_t ProductChainExchangeBytes(int64_t rows, int64_t width,
                                  int64_t features);

cudaError_t LaunchProductChain(const ProductChainParams& params,
                               cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_CUDA_H_
