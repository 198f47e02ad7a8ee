#include "client/loadgen/bench_html.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "client/loadgen/bench_cache.h"
#include "client/loadgen/bench_metrics.h"
#include "client/loadgen/bench_report_template.h"
#include "client/loadgen/bench_series.h"

namespace recurve {
namespace {

using nlohmann::ordered_json;

// Enough to draw a smooth curve.
constexpr int kCurvePoints = 201;
constexpr double kTimeBins = 120;
// More would be drawn on top of each other, and make large files.
constexpr size_t kTimelineRequests = 1500;

// Three significant places below a millisecond, so that the file stays small.
double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

ordered_json RoundedArray(const std::vector<double>& values) {
  ordered_json array = ordered_json::array();
  for (const double value : values) array.push_back(Rounded(value));
  return array;
}

// The first requests in order of sending: [sent, first token, end, outcome]
// with times in seconds; the first token's is null without tokens.
ordered_json Timeline(const BenchResult& result) {
  std::vector<const RequestRecord*> records;
  records.reserve(result.records.size());
  for (const RequestRecord& record : result.records) {
    records.push_back(&record);
  }
  std::sort(records.begin(), records.end(),
            [](const RequestRecord* a, const RequestRecord* b) {
              return a->start_seconds < b->start_seconds;
            });
  if (records.size() > kTimelineRequests) records.resize(kTimelineRequests);
  ordered_json lines = ordered_json::array();
  for (const RequestRecord* record : records) {
    const RequestLatency& latency = record->latency;
    const double start = record->start_seconds;
    lines.push_back(
        {Rounded(start),
         latency.ttft_ms.has_value()
             ? ordered_json(Rounded(start + *latency.ttft_ms / 1000))
             : ordered_json(),
         Rounded(start + latency.e2el_ms / 1000),
         OutcomeName(record->outcome)});
  }
  return lines;
}

ordered_json StepData(const BenchStep& step) {
  const BenchResult& result = step.result;
  std::vector<double> ttft;
  std::vector<double> ttft_hit;
  std::vector<double> ttft_miss;
  std::vector<double> itl;
  for (const RequestRecord& record : result.records) {
    if (record.outcome != Outcome::kCompleted) continue;
    const RequestLatency& latency = record.latency;
    if (latency.ttft_ms.has_value()) {
      ttft.push_back(*latency.ttft_ms);
      (IsCacheHit(record) ? ttft_hit : ttft_miss).push_back(*latency.ttft_ms);
    }
    itl.insert(itl.end(), latency.itl_ms.begin(), latency.itl_ms.end());
  }
  // A round length: a second, or a multiple or a decimal fraction of it.
  double bin = result.duration_seconds / kTimeBins;
  bin = bin > 1 ? std::ceil(bin)
                : std::pow(10, std::ceil(std::log10(std::max(bin, 1e-3))));
  const TimeSeries series = MakeTimeSeries(result, bin);
  ordered_json data;
  data["label"] = StepLabel(step.options);
  data["interruption"] = FormatInterruption(step.report);
  data["report"] = step.report;
  data["ttft_curve"] = RoundedArray(Quantiles(std::move(ttft), kCurvePoints));
  data["ttft_hit_curve"] =
      RoundedArray(Quantiles(std::move(ttft_hit), kCurvePoints));
  data["ttft_miss_curve"] =
      RoundedArray(Quantiles(std::move(ttft_miss), kCurvePoints));
  data["itl_curve"] = RoundedArray(Quantiles(std::move(itl), kCurvePoints));
  data["bin_seconds"] = bin;
  data["tokens_per_second"] = RoundedArray(series.tokens_per_second);
  data["open"] = RoundedArray(series.open);
  data["timeline"] = Timeline(result);
  data["timeline_of"] = result.records.size();
  return data;
}

}  // namespace

std::string MakeHtmlReport(const ordered_json& report,
                           const std::vector<BenchStep>& steps) {
  ordered_json data;
  data["report"] = report;
  data["steps"] = ordered_json::array();
  for (const BenchStep& step : steps) data["steps"].push_back(StepData(step));
  data["definitions"] = ordered_json::array();
  for (const MetricDefinition& metric : MetricDefinitions()) {
    data["definitions"].push_back({metric.name, metric.unit, metric.meaning});
  }
  // "<" could end the script element that holds the data, or begin a comment.
  const std::string json = absl::StrReplaceAll(
      data.dump(-1, ' ', false, ordered_json::error_handler_t::replace),
      {{"<", "\\u003c"}});
  const std::string page(kBenchReportTemplate);
  RECURVE_CHECK(page.find("@DATA@") != std::string::npos);
  return absl::StrReplaceAll(page, {{"@DATA@", json}});
}

}  // namespace recurve
