#ifndef RECURVE_CLIENT_LOADGEN_BENCH_STATS_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_STATS_H_

#include <cstddef>
#include <vector>

namespace recurve {

// The value below which `percent` of the sample lies, by linear interpolation
// between the two closest ranks: rank = percent/100 * (n - 1), as numpy's
// default.
// REQUIRES: `sorted` ascending and not empty; 0 <= percent <= 100.
double Percentile(const std::vector<double>& sorted, double percent);

// In the unit of the sample. All zero when count is 0.
struct Summary {
  size_t count = 0;
  double mean = 0;
  double median = 0;
  // Population standard deviation: the root of the mean squared deviation.
  double std_dev = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double p999 = 0;
};

Summary Summarize(std::vector<double> sample);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_STATS_H_
