#ifndef RECURVE_KERNELS_NORM_NORM_H_
#define RECURVE_KERNELS_NORM_NORM_H_

#include <cstdint>

#include "kernels/common/activation.h"

namespace recurve {

class ThreadPool;

// RMSNorm (Zhang and Sennrich, 2019): y = x · rsqrt(mean(x²) + eps) · weight.
// The mean runs over each of `groups` equal parts of a row (1: the whole row).
struct RmsNormParams {
  const float* x;  // [rows, cols]
  int64_t x_stride;
  const float* weight;  // [cols], or null for none
  float* y;             // [rows, cols]; may be x
  int64_t y_stride;
  int64_t rows;
  int64_t cols;    // a multiple of groups
  int64_t groups;  // >= 1
  float eps;       // added to the mean of squares
};
void RmsNorm(const RmsNormParams& params, ThreadPool& pool);

// LayerNorm (Ba et al., 2016): y = (x - mean(x)) · rsqrt(variance(x) + eps) ·
// weight + bias.
struct LayerNormParams {
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
void LayerNorm(const LayerNormParams& params, ThreadPool& pool);

// The output gate of a linear-attention layer. Gate before the norm:
// y = RMSNorm(x ⊙ act(gate)); after it: y = RMSNorm(x) ⊙ act(gate).
struct GatedNormParams {
  RmsNormParams norm;
  const float* gate;  // [rows, cols]
  int64_t gate_stride;
  Activation activation;  // pointwise
  bool gate_after_norm;
};
void GatedNorm(const GatedNormParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_NORM_NORM_H_
