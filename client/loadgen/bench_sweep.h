#ifndef RECURVE_CLIENT_LOADGEN_BENCH_SWEEP_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_SWEEP_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loadgen/bench_runner.h"

namespace recurve {

// The rates of a sweep in requests a second: "1,2,4.5", or "1:64" for 1, 2, 4,
// … doubled up to 64. At least one, all above 0, ascending, at most 100.
absl::StatusOr<std::vector<double>> ParseRates(absl::string_view text);

// As ParseRates, for integer numbers of streams, 1 to 10000.
absl::StatusOr<std::vector<uint32_t>> ParseConcurrencies(
    absl::string_view text);

// The verdict of an open-loop run on the server. See `saturated` in
// bench_metrics.cc.
struct Verdict {
  // Whether the server cannot sustain the rate; also false if the run is too
  // short to tell. Nothing if the run failed for reasons other than load.
  std::optional<bool> saturated = false;
  // The reason for true or nothing.
  std::string reason;
};
Verdict Judge(const BenchResult& result);

// One rate of a sweep that has a verdict.
struct SweepPoint {
  double rate = 0;
  bool saturated = false;
};

// The highest rate below every saturated one.
std::optional<double> MaxSustainedRate(const std::vector<SweepPoint>& points);

// The rate between the highest sustained and the lowest saturated one, their
// geometric mean to three significant places; nothing when one of the two is
// missing.
std::optional<double> RateBetween(const std::vector<SweepPoint>& points);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_SWEEP_H_
