#ifndef RECURVE_TESTS_KERNELS_ACTIVATION_ORACLE_H_
#define RECURVE_TESTS_KERNELS_ACTIVATION_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "kernels/common/activation.h"

namespace recurve {

// The pointwise activations in float64.
inline double ActivationOracle(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kElu:
      return x > 0.0 ? x : std::expm1(x);
    case Activation::kOnePlusElu:
      return x > 0.0 ? 1.0 + x : std::exp(x);
    case Activation::kTwoPlusElu:
      return x > 0.0 ? 2.0 + x : 1.0 + std::exp(x);
    case Activation::kExp:
      return std::exp(x);
    case Activation::kLeakyRelu:
      return x > 0.0 ? x : 0.01 * x;
    case Activation::kReluSquared:
      return x > 0.0 ? x * x : 0.0;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kNone:
    case Activation::kSoftmax:
      break;
  }
  return x;
}

// All of them, over the features of one head.
inline std::vector<double> ActivationRowOracle(Activation activation,
                                               absl::Span<const float> x) {
  std::vector<double> y(x.begin(), x.end());
  if (activation != Activation::kSoftmax) {
    for (double& value : y) value = ActivationOracle(activation, value);
    return y;
  }
  const double max = *std::max_element(y.begin(), y.end());
  double sum = 0.0;
  for (double& value : y) sum += value = std::exp(value - max);
  for (double& value : y) value /= sum;
  return y;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_ACTIVATION_ORACLE_H_
