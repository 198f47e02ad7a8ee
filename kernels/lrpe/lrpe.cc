#include "kernels/lrpe/lrpe.h"

#include <cmath>

#include "base/dtype.h"
#include "base/thread_pool.h"

namespace recurve {

std::vector<double> LrpeTheta(LrpeType type, int64_t dim, double base) {
  std::vector<double> theta(LrpeAngles(type, dim));
  for (size_t k = 0; k < theta.size(); ++k) {
    theta[k] = std::pow(
        base, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
  }
  return theta;
}

std::vector<uint64_t> LrpePhaseSteps(absl::Span<const double> theta) {
  std::vector<uint64_t> steps;
  steps.reserve(theta.size());
  for (double angle : theta) {
    const long double turns =
        static_cast<long double>(angle) / (2.0L * 3.14159265358979323846264L);
    const long double fraction = turns - std::floor(turns);
    const long double scaled = std::round(fraction * 0x1p64L);
    steps.push_back(scaled >= 0x1p64L ? 0 : static_cast<uint64_t>(scaled));
  }
  return steps;
}

void LrpeTable(const LrpeTableParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.rows, [&](int64_t row) {
    const uint64_t position = static_cast<uint64_t>(p.positions[row]);
    for (int64_t k = 0; k < p.angles; ++k) {
      // As a signed number the phase is within half a turn of 0.
      const int64_t phase = static_cast<int64_t>(p.phase_steps[k] * position);
      const double radians =
          static_cast<double>(phase) * (3.14159265358979323846 * 0x1p-63);
      p.cos[row * p.angles + k] = static_cast<float>(std::cos(radians));
      p.sin[row * p.angles + k] = static_cast<float>(std::sin(radians));
    }
  });
}

void LrpeFloat32Table(const LrpeFloat32TableParams& p, ThreadPool& pool) {
  const auto rounded = [&p](float x) {
    return p.round_to_bfloat16 ? BFloat16ToFloat(FloatToBFloat16(x)) : x;
  };
  pool.ParallelFor(p.rows, [&](int64_t row) {
    const float position = static_cast<float>(p.positions[row]);
    for (int64_t k = 0; k < p.angles; ++k) {
      const float angle = position * p.theta[k];
      // exp(0) is 1: without a decay nothing changes.
      const float decay = static_cast<float>(
          std::exp(static_cast<double>(std::abs(angle) * p.log_decay)));
      const double wide = static_cast<double>(angle);
      p.cos[row * p.angles + k] =
          rounded(static_cast<float>(std::cos(wide))) * decay;
      p.sin[row * p.angles + k] =
          rounded(static_cast<float>(std::sin(wide))) * decay;
    }
  });
}

}  // namespace recurve
