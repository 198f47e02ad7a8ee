#ifndef RECURVE_CLIENT_LOADGEN_BENCH_LENGTHS_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_LENGTHS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loadgen/bench_random.h"

namespace recurve {

// Distribution of the lengths of a load test, in tokens.
// Thread safety: const methods may be called from any thread.
class LengthDistribution {
 public:
  // Uniform in [min, max]; 1 <= min <= max.
  LengthDistribution(uint32_t min, uint32_t max);

  // One of
  //   N                          always N
  //   MIN:MAX                    uniform
  //   normal:MEAN:STD:MIN:MAX    rounded to a whole number
  //   lognormal:MEDIAN:SIGMA:MIN:MAX   exp(N(ln MEDIAN, SIGMA)), rounded
  //   zipf:S:MIN:MAX             of length k with weight (k - MIN + 1)^-S
  //   file:PATH                  the lengths in a file, one a line, each as
  //                              likely as it is frequent
  // Values of the normal and lognormal below MIN or above MAX become MIN or
  // MAX. InvalidArgument quotes the error; NotFound if there is no file.
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view text);

  // A length, min() <= length <= max().
  uint32_t Draw(BenchDraws* draws) const;

  uint32_t min() const { return min_; }
  uint32_t max() const { return max_; }
  // In the form that Parse accepts.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kUniform, kNormal, kLognormal, kZipf, kFile };

  static absl::StatusOr<LengthDistribution> ParseNamed(absl::string_view text);
  static absl::StatusOr<LengthDistribution> ReadLengths(
      const std::string& path);

  Kind kind_ = Kind::kUniform;
  uint32_t min_;
  uint32_t max_;
  // Mean and standard deviation, or logarithm of the median and sigma.
  double location_ = 0;
  double spread_ = 0;
  // Zipf: cumulative weights of the lengths from min_ on, the last is 1.
  std::shared_ptr<const std::vector<double>> cumulative_;
  // File: its lengths.
  std::shared_ptr<const std::vector<uint32_t>> lengths_;
  std::string text_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_LENGTHS_H_
