#ifndef RECURVE_TESTS_KERNELS_LRPE_ORACLE_H_
#define RECURVE_TESTS_KERNELS_LRPE_ORACLE_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// x at `position`, by definition, with θ_k = base^(−2k/dim). Sines are of long
// doubles, accurate for all positions used in tests.
inline std::vector<double> LrpeOracle(LrpeType type, absl::Span<const double> x,
                                      int64_t position, double base) {
  const size_t dim = x.size();
  const auto angle = [&](size_t k) {
    const double theta = std::pow(
        base, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
    return static_cast<long double>(position) * static_cast<long double>(theta);
  };
  const auto cosine = [&](size_t k) {
    return static_cast<double>(std::cos(angle(k)));
  };
  const auto sine = [&](size_t k) {
    return static_cast<double>(std::sin(angle(k)));
  };
  if (type == LrpeType::kNone) return {x.begin(), x.end()};
  if (type == LrpeType::kRotate) {
    const size_t half = dim / 2;
    std::vector<double> y(dim);
    for (size_t k = 0; k < half; ++k) {
      y[k] = x[k] * cosine(k) - x[half + k] * sine(k);
      y[half + k] = x[k] * sine(k) + x[half + k] * cosine(k);
    }
    return y;
  }
  std::vector<double> y(2 * dim);
  for (size_t k = 0; k < dim; ++k) {
    y[k] = x[k] * cosine(k);
    y[dim + k] = x[k] * sine(k);
  }
  return y;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_LRPE_ORACLE_H_
