#ifndef RECURVE_TESTS_TESTING_COMPARE_H_
#define RECURVE_TESTS_TESTING_COMPARE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace recurve {

// Every got[i] is finite and within tolerance · scale of want[i].
inline testing::AssertionResult NearScaled(absl::Span<const float> got,
                                           absl::Span<const double> want,
                                           double tolerance, double scale) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure()
           << got.size() << " values, wanted " << want.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    if (!(error <= tolerance * scale)) {
      return testing::AssertionFailure()
             << "[" << i << "] of " << got.size() << " is " << got[i]
             << ", wanted " << want[i] << ": error " << error << " is "
             << error / scale << " of the scale " << scale << ", more than "
             << tolerance;
    }
  }
  return testing::AssertionSuccess();
}

// Relative error of a vector: the largest difference divided by the largest
// magnitude. (Relative errors of single elements mean little after
// cancellation.)
inline testing::AssertionResult RelativelyNear(absl::Span<const float> got,
                                               absl::Span<const double> want,
                                               double tolerance) {
  double scale = 0.0;
  for (double value : want) scale = std::max(scale, std::abs(value));
  return NearScaled(got, want, tolerance, scale);
}

// Bit for bit, so NaN equals itself and 0 differs from -0.
inline testing::AssertionResult SameBits(absl::Span<const float> a,
                                         absl::Span<const float> b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure()
           << a.size() << " values against " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return testing::AssertionFailure()
             << "[" << i << "] of " << a.size() << ": " << a[i] << " against "
             << b[i] << " (differ by " << a[i] - b[i] << ")";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_COMPARE_H_
