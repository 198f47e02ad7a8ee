#include "client/loadgen/bench_random.h"

#include <cmath>

namespace recurve {

double BenchDraws::Normal() {
  // Box and Muller, 1958; the second value is not kept.
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(Unit()));
  return radius * std::cos(kTwoPi * Unit());
}

double BenchDraws::Gamma(double shape) {
  // Marsaglia and Tsang, "A simple method for generating gamma variables",
  // 2000; its section 6 reduces shapes below 1 to those above.
  double boost = 1;
  if (shape < 1) {
    boost = std::pow(Unit(), 1 / shape);
    shape += 1;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = Normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(Unit()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return boost * d * v;
    }
  }
}

}  // namespace recurve
