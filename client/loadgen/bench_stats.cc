#include "client/loadgen/bench_stats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace recurve {

double Percentile(const std::vector<double>& sorted, double percent) {
  RECURVE_CHECK(!sorted.empty() && percent >= 0 && percent <= 100);
  const double rank = percent / 100.0 * static_cast<double>(sorted.size() - 1);
  const size_t low = std::min(static_cast<size_t>(rank), sorted.size() - 1);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const double fraction = rank - static_cast<double>(low);
  return sorted[low] + fraction * (sorted[high] - sorted[low]);
}

Summary Summarize(std::vector<double> sample) {
  Summary summary;
  summary.count = sample.size();
  if (sample.empty()) return summary;
  std::sort(sample.begin(), sample.end());
  const double count = static_cast<double>(sample.size());
  double sum = 0;
  for (const double value : sample) sum += value;
  summary.mean = sum / count;
  double squares = 0;
  for (const double value : sample) {
    squares += (value - summary.mean) * (value - summary.mean);
  }
  summary.std_dev = std::sqrt(squares / count);
  summary.median = Percentile(sample, 50);
  summary.p90 = Percentile(sample, 90);
  summary.p95 = Percentile(sample, 95);
  summary.p99 = Percentile(sample, 99);
  summary.p999 = Percentile(sample, 99.9);
  return summary;
}

}  // namespace recurve
