#ifndef RECURVE_KERNELS_COMMON_ACTIVATION_H_
#define RECURVE_KERNELS_COMMON_ACTIVATION_H_

#include <cmath>
#include <cstdint>

namespace recurve {

// Pointwise functions, and softmax over the features of one head.
enum class Activation {
  kNone,
  kSilu,
  kRelu,
  kSigmoid,
  kElu,
  kOnePlusElu,
  kTwoPlusElu,
  kExp,
  kLeakyRelu,    // slope 0.01
  kReluSquared,  // relu(x)²
  kGelu,         // exact, by erf
  kSoftmax,
};

inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// REQUIRES: activation is pointwise (not kSoftmax).
inline float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;  // a NaN stays one
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kElu:
      return x > 0.0f ? x : std::expm1(x);
    case Activation::kOnePlusElu:
      return x > 0.0f ? 1.0f + x : std::exp(x);
    case Activation::kTwoPlusElu:
      return x > 0.0f ? 2.0f + x : 1.0f + std::exp(x);
    case Activation::kExp:
      return std::exp(x);
    case Activation::kLeakyRelu:
      return x < 0.0f ? 0.01f * x : x;
    case Activation::kReluSquared:
      return x < 0.0f ? 0.0f : x * x;
    case Activation::kGelu:
      return 0.5f * x * std::erfc(x * -0.70710678118654752440f);
    case Activation::kNone:
    case Activation::kSoftmax:
      break;
  }
  return x;
}

// y[0..n) = activation(x[0..n)); x and y may be the same.
inline void ActivateRow(Activation activation, const float* x, float* y,
                        int64_t n) {
  if (activation != Activation::kSoftmax) {
    for (int64_t i = 0; i < n; ++i) y[i] = Activate(activation, x[i]);
    return;
  }
  float max = x[0];
  for (int64_t i = 1; i < n; ++i) max = x[i] > max ? x[i] : max;
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = std::exp(x[i] - max);
    sum += y[i];
  }
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_ACTIVATION_H_
