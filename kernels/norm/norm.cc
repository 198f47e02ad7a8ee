#include "kernels/norm/norm.h"

#include <cmath>

#include "base/thread_pool.h"

namespace recurve {
namespace {

// Sum of term(x[i]) in 16 interleaved partial sums, folded in halves: a fixed
// order that a compiler can still vectorise.
template <typename Term>
float Sum(const float* x, int64_t n, Term term) {
  constexpr int kLanes = 16;
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) partial[j] += term(x[i + j]);
  }
  for (int j = 0; i < n; ++i, ++j) partial[j] += term(x[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) partial[j] += partial[j + width];
  }
  return partial[0];
}

float SumOfSquares(const float* x, int64_t n) {
  return Sum(x, n, [](float value) { return value * value; });
}

void NormRow(const RmsNormParams& p, const float* x, float* y) {
  const int64_t width = p.cols / p.groups;
  for (int64_t g = 0; g < p.groups; ++g) {
    const float* in = x + g * width;
    float* out = y + g * width;
    const float mean = SumOfSquares(in, width) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + p.eps);
    if (p.weight == nullptr) {
      for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale;
    } else {
      const float* weight = p.weight + g * width;
      for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale * weight[i];
    }
  }
}

}  // namespace

void RmsNorm(const RmsNormParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.rows, [&](int64_t row) {
    NormRow(p, p.x + row * p.x_stride, p.y + row * p.y_stride);
  });
}

void LayerNorm(const LayerNormParams& p, ThreadPool& pool) {
  const float size = static_cast<float>(p.cols);
  pool.ParallelFor(p.rows, [&](int64_t row) {
    const float* x = p.x + row * p.x_stride;
    float* y = p.y + row * p.y_stride;
    const float mean = Sum(x, p.cols, [](float value) { return value; }) / size;
    const float variance =
        Sum(x, p.cols,
            [mean](float value) { return (value - mean) * (value - mean); }) /
        size;
    const float scale = 1.0f / std::sqrt(variance + p.eps);
    for (int64_t i = 0; i < p.cols; ++i) {
      const float weight = p.weight == nullptr ? 1.0f : p.weight[i];
      const float bias = p.bias == nullptr ? 0.0f : p.bias[i];
      y[i] = (x[i] - mean) * scale * weight + bias;
    }
  });
}

void GatedNorm(const GatedNormParams& params, ThreadPool& pool) {
  const RmsNormParams& p = params.norm;
  pool.ParallelFor(p.rows, [&](int64_t row) {
    const float* x = p.x + row * p.x_stride;
    const float* gate = params.gate + row * params.gate_stride;
    float* y = p.y + row * p.y_stride;
    if (params.gate_after_norm) {
      NormRow(p, x, y);
      for (int64_t i = 0; i < p.cols; ++i)
        y[i] *= Activate(params.activation, gate[i]);
    } else {
      for (int64_t i = 0; i < p.cols; ++i)
        y[i] = x[i] * Activate(params.activation, gate[i]);
      NormRow(p, y, y);
    }
  });
}

}  // namespace recurve
