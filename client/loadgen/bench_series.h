#ifndef RECURVE_CLIENT_LOADGEN_BENCH_SERIES_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_SERIES_H_

#include <cstdint>
#include <vector>

#include "client/loadgen/bench_runner.h"

namespace recurve {

// A run over time. Bin i is [i, i + 1) * bin_seconds since the start; the last
// may extend beyond the end.
struct TimeSeries {
  double bin_seconds = 1;
  // Tokens of completed and cancelled requests received in the bin /
  // bin_seconds.
  std::vector<double> tokens_per_second;
  // Mean number of requests open.
  std::vector<double> open;
};

// REQUIRES: bin_seconds > 0.
TimeSeries MakeTimeSeries(const BenchResult& result, double bin_seconds);

// Sum of the times during which requests were open, in seconds.
double OpenSeconds(const BenchResult& result);

// Maximum number of requests open at a time.
uint64_t PeakOpen(const BenchResult& result);

// A curve through the distribution: the value at each of `points` evenly spaced
// percentiles from 0 to 100. Empty for an empty sample; points >= 2.
std::vector<double> Quantiles(std::vector<double> sample, int points);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_SERIES_H_
