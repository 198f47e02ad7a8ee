#include "client/loadgen/bench_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/loadgen/bench_stats.h"

namespace recurve {
namespace {

constexpr size_t kRecentRequests = 100;
constexpr size_t kRecentRates = 32;

// One bar for each value, scaled to the highest.
std::string Sparkline(const std::deque<double>& values) {
  constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double highest = *std::max_element(values.begin(), values.end());
  std::string bars;
  for (const double value : values) {
    const int level =
        highest > 0 ? static_cast<int>(std::lround(value / highest * 7)) : 0;
    absl::StrAppend(&bars, kBars[std::clamp(level, 0, 7)]);
  }
  return bars;
}

std::string LatencyLine(const char* name, std::vector<double> sample) {
  if (sample.empty()) return absl::StrFormat("  %-9s -", name);
  const Summary summary = Summarize(std::move(sample));
  return absl::StrFormat("  %-9s p50 %9.1f   p90 %9.1f   p99 %9.1f", name,
                         summary.median, summary.p90, summary.p99);
}

}  // namespace

LiveView::LiveView(std::string total) : total_(std::move(total)) {}

std::vector<std::string> LiveView::Lines(const BenchProgress& progress) {
  const double elapsed = progress.elapsed_seconds;
  const double interval = elapsed - last_seconds_;
  const uint64_t tokens = progress.output_tokens;
  rates_.push_back(
      interval > 0 ? static_cast<double>(tokens - last_tokens_) / interval : 0);
  if (rates_.size() > kRecentRates) rates_.pop_front();
  last_seconds_ = elapsed;
  last_tokens_ = tokens;

  std::vector<double> ttft;
  std::vector<double> itl;
  if (progress.records != nullptr) {
    const auto& records = *progress.records;
    for (size_t i = records.size() - std::min(records.size(), kRecentRequests);
         i < records.size(); ++i) {
      const RequestLatency& latency = records[i].latency;
      if (records[i].outcome != Outcome::kCompleted) continue;
      if (latency.ttft_ms.has_value()) ttft.push_back(*latency.ttft_ms);
      itl.insert(itl.end(), latency.itl_ms.begin(), latency.itl_ms.end());
    }
  }
  const double mean = elapsed > 0 ? static_cast<double>(tokens) / elapsed : 0;
  return {
      absl::StrFormat("  %.1f s   %d/%s done   %d running   %d failed", elapsed,
                      progress.ended, total_, progress.running,
                      progress.failed),
      absl::StrFormat("  tokens/s  now %9.0f   mean %8.0f   %s", rates_.back(),
                      mean, Sparkline(rates_)),
      LatencyLine("TTFT ms", std::move(ttft)),
      LatencyLine("ITL ms", std::move(itl)),
  };
}

}  // namespace recurve
