#include "client/loadgen/bench_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "client/loadgen/bench_stats.h"

namespace recurve {
namespace {

double EndSeconds(const RequestRecord& record) {
  return record.start_seconds + record.latency.e2el_ms / 1000;
}

}  // namespace

TimeSeries MakeTimeSeries(const BenchResult& result, double bin_seconds) {
  RECURVE_CHECK(bin_seconds > 0);
  TimeSeries series;
  series.bin_seconds = bin_seconds;
  const size_t bins = std::max<size_t>(
      1, static_cast<size_t>(std::ceil(result.duration_seconds / bin_seconds)));
  series.tokens_per_second.assign(bins, 0);
  series.open.assign(bins, 0);
  const auto bin_of = [&](double seconds) {
    return std::min(bins - 1,
                    static_cast<size_t>(std::max(0.0, seconds) / bin_seconds));
  };
  for (const RequestRecord& record : result.records) {
    const double end = EndSeconds(record);
    for (size_t bin = bin_of(record.start_seconds); bin <= bin_of(end); ++bin) {
      const double from = std::max(record.start_seconds,
                                   static_cast<double>(bin) * bin_seconds);
      const double to =
          std::min(end, static_cast<double>(bin + 1) * bin_seconds);
      series.open[bin] += std::max(0.0, to - from) / bin_seconds;
    }
    const RequestLatency& latency = record.latency;
    if (record.outcome == Outcome::kFailed || !latency.ttft_ms.has_value()) {
      continue;
    }
    // The first event's tokens have no gaps of their own.
    double at = record.start_seconds + *latency.ttft_ms / 1000;
    const size_t tokens = record.generation.token_ids.size();
    const size_t first = tokens - std::min(tokens, latency.itl_ms.size());
    series.tokens_per_second[bin_of(at)] +=
        static_cast<double>(first) / bin_seconds;
    for (const double gap : latency.itl_ms) {
      at += gap / 1000;
      series.tokens_per_second[bin_of(at)] += 1 / bin_seconds;
    }
  }
  return series;
}

double OpenSeconds(const BenchResult& result) {
  double sum = 0;
  for (const RequestRecord& record : result.records) {
    sum += record.latency.e2el_ms / 1000;
  }
  return sum;
}

uint64_t PeakOpen(const BenchResult& result) {
  // An end sorts before a start at the same time.
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& record : result.records) {
    changes.emplace_back(record.start_seconds, 1);
    changes.emplace_back(EndSeconds(record), -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t open = 0;
  int64_t peak = 0;
  for (const auto& change : changes) {
    open += change.second;
    peak = std::max(peak, open);
  }
  return static_cast<uint64_t>(peak);
}

std::vector<double> Quantiles(std::vector<double> sample, int points) {
  RECURVE_CHECK(points >= 2);
  std::vector<double> values;
  if (sample.empty()) return values;
  std::sort(sample.begin(), sample.end());
  values.reserve(points);
  for (int i = 0; i < points; ++i) {
    values.push_back(Percentile(sample, 100.0 * i / (points - 1)));
  }
  return values;
}

}  // namespace recurve
