#include "client/loadgen/bench_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/loadgen/bench_cache.h"
#include "client/loadgen/bench_series.h"
#include "client/loadgen/bench_stats.h"

namespace recurve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kMetrics[] = {"ttft", "ttft_hit", "ttft_miss", "tpot",
                                    "itl",  "e2el",     "send_lag",  "reject"};
constexpr const char* kStatistics[] = {"mean", "median", "std",  "p90",
                                       "p95",  "p99",    "p99.9"};

std::string Key(const char* statistic, const char* metric) {
  return absl::StrCat(statistic, "_", metric, "_ms");
}

void AddSummary(const char* metric, std::vector<double> sample,
                ordered_json* report) {
  const Summary s = Summarize(std::move(sample));
  const double values[] = {s.mean, s.median, s.std_dev, s.p90,
                           s.p95,  s.p99,    s.p999};
  for (int i = 0; i < 7; ++i) {
    ordered_json& value = (*report)[Key(kStatistics[i], metric)];
    if (s.count > 0) value = values[i];
  }
}

// The name of a metric in the table; hits and misses are below TTFT.
std::string TableName(absl::string_view metric) {
  if (metric == "send_lag") return "LAG";
  if (metric == "ttft_hit") return " hit";
  if (metric == "ttft_miss") return " miss";
  return absl::AsciiStrToUpper(metric);
}

double Rate(uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// The requested rate in requests a second.
ordered_json RequestRate(const std::optional<ArrivalConfig>& arrivals) {
  if (!arrivals.has_value()) return "inf";
  if (arrivals->trace != nullptr) return nullptr;
  return arrivals->rate;
}

bool HasBurstiness(const std::optional<ArrivalConfig>& arrivals) {
  return arrivals.has_value() && arrivals->trace == nullptr &&
         !arrivals->constant;
}

// Whether the server refused it because it had no room.
bool IsRejected(const RequestRecord& record) {
  return record.outcome == Outcome::kFailed &&
         (absl::IsResourceExhausted(record.status) ||
          absl::IsUnavailable(record.status));
}

// Over whole seconds; null if there is none.
ordered_json MaxTokensPerSecond(const BenchResult& result) {
  const std::vector<double> all = MakeTimeSeries(result, 1).tokens_per_second;
  const auto whole =
      std::min(static_cast<std::ptrdiff_t>(result.duration_seconds),
               static_cast<std::ptrdiff_t>(all.size()));
  if (whole == 0) return nullptr;
  return *std::max_element(all.begin(), all.begin() + whole);
}

}  // namespace

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kCancelled:
      return "cancelled";
    case Outcome::kFailed:
      return "failed";
  }
  return "unknown";
}

std::map<absl::StatusCode, std::pair<uint64_t, std::string>> CountErrors(
    const BenchResult& result) {
  std::map<absl::StatusCode, std::pair<uint64_t, std::string>> errors;
  for (const RequestRecord& record : result.records) {
    if (record.outcome != Outcome::kFailed) continue;
    auto& [count, message] = errors[record.status.code()];
    if (count++ == 0) message = std::string(record.status.message());
  }
  return errors;
}

ordered_json MakeReport(const BenchResult& result,
                        const ReportContext& context) {
  uint64_t counts[3] = {0, 0, 0};
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  uint64_t cancelled_output_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t good = 0;
  std::vector<double> ttft, ttft_hit, ttft_miss, tpot, itl, e2el, send_lag,
      reject;
  for (const RequestRecord& record : result.records) {
    ++counts[static_cast<int>(record.outcome)];
    send_lag.push_back(record.send_lag_ms);
    if (IsRejected(record)) reject.push_back(record.latency.e2el_ms);
    const uint64_t generated = record.generation.token_ids.size();
    if (record.outcome == Outcome::kCancelled) {
      cancelled_output_tokens += generated;
    }
    if (record.outcome != Outcome::kCompleted) continue;
    input_tokens += record.prompt_tokens;
    output_tokens += generated;
    preemptions += record.generation.end.usage().preemptions();
    const RequestLatency& latency = record.latency;
    if (KeepsServiceLevel(latency, context.service_level)) ++good;
    if (latency.ttft_ms.has_value()) {
      ttft.push_back(*latency.ttft_ms);
      (IsCacheHit(record) ? ttft_hit : ttft_miss).push_back(*latency.ttft_ms);
    }
    if (latency.tpot_ms.has_value()) tpot.push_back(*latency.tpot_ms);
    itl.insert(itl.end(), latency.itl_ms.begin(), latency.itl_ms.end());
    e2el.push_back(latency.e2el_ms);
  }
  const uint64_t completed = counts[static_cast<int>(Outcome::kCompleted)];
  const double duration = result.duration_seconds;
  ordered_json report;
  report["duration"] = duration;
  report["completed"] = completed;
  report["cancelled"] = counts[static_cast<int>(Outcome::kCancelled)];
  report["failed"] = counts[static_cast<int>(Outcome::kFailed)];
  report["num_prompts"] = result.records.size();
  report["total_input_tokens"] = input_tokens;
  report["total_output_tokens"] = output_tokens;
  report["cancelled_output_tokens"] = cancelled_output_tokens;
  report["preemptions"] = preemptions;
  AddCacheFigures(result, &report);
  report["request_rate"] = RequestRate(context.arrivals);
  report["burstiness"] = HasBurstiness(context.arrivals)
                             ? ordered_json(context.arrivals->burstiness)
                             : ordered_json();
  report["max_concurrency"] = context.max_concurrency.has_value()
                                  ? ordered_json(*context.max_concurrency)
                                  : ordered_json();
  report["request_throughput"] = Rate(completed, duration);
  const uint64_t judged =
      completed + counts[static_cast<int>(Outcome::kFailed)];
  const bool has_level = context.service_level.any();
  report["request_goodput"] =
      has_level ? ordered_json(Rate(good, duration)) : ordered_json();
  report["good_fraction"] = has_level && judged > 0
                                ? ordered_json(static_cast<double>(good) /
                                               static_cast<double>(judged))
                                : ordered_json();
  report["output_throughput"] = Rate(output_tokens, duration);
  report["total_token_throughput"] =
      Rate(input_tokens + output_tokens, duration);
  report["max_output_tokens_per_s"] = MaxTokensPerSecond(result);
  report["mean_concurrent_requests"] =
      duration > 0 ? OpenSeconds(result) / duration : 0;
  report["max_concurrent_requests"] = PeakOpen(result);
  AddSummary("ttft", std::move(ttft), &report);
  AddSummary("ttft_hit", std::move(ttft_hit), &report);
  AddSummary("ttft_miss", std::move(ttft_miss), &report);
  AddSummary("tpot", std::move(tpot), &report);
  AddSummary("itl", std::move(itl), &report);
  AddSummary("e2el", std::move(e2el), &report);
  AddSummary("send_lag", std::move(send_lag), &report);
  AddSummary("reject", std::move(reject), &report);
  report["errors"] = ordered_json::object();
  for (const auto& [code, entry] : CountErrors(result)) {
    report["errors"][absl::StatusCodeToString(code)] = entry.first;
  }
  report["stopped_early"] = result.stopped || result.gave_up;
  report["interrupted_after"] =
      result.stopped ? ordered_json(result.stopped_seconds) : ordered_json();
  report["interrupted_requests"] = result.interrupted;
  return report;
}

std::string FormatInterruption(const ordered_json& report,
                               absl::string_view where) {
  const ordered_json& after = report["interrupted_after"];
  if (after.is_null()) return "";
  const uint64_t requests = report["interrupted_requests"].get<uint64_t>();
  return absl::StrFormat(
      "Interrupted%s after %.1f s; %d %s in no figure.", where,
      after.get<double>(), requests,
      requests == 1 ? "request under way is" : "requests under way are");
}

std::string FormatReport(const ordered_json& report) {
  std::string text = FormatInterruption(report);
  if (!text.empty()) absl::StrAppend(&text, "\n\n");
  const auto count = [&](const char* label, const char* key) {
    absl::StrAppendFormat(&text, "%-28s%12d\n", label,
                          report[key].get<uint64_t>());
  };
  const auto real = [&](const char* label, const char* key) {
    absl::StrAppendFormat(&text, "%-28s%12.2f\n", label,
                          report[key].get<double>());
  };
  count("Completed requests", "completed");
  count("Cancelled requests", "cancelled");
  count("Failed requests", "failed");
  for (const auto& [name, failures] : report["errors"].items()) {
    absl::StrAppendFormat(&text, "  %-26s%12d\n", name,
                          failures.get<uint64_t>());
  }
  real("Duration (s)", "duration");
  count("Input tokens", "total_input_tokens");
  count("Output tokens", "total_output_tokens");
  count("Preemptions", "preemptions");
  absl::StrAppend(&text, FormatCacheFigures(report));
  real("Requests/s", "request_throughput");
  if (!report["request_goodput"].is_null()) {
    real("Good requests/s", "request_goodput");
  }
  real("Output tokens/s", "output_throughput");
  real("Input + output tokens/s", "total_token_throughput");
  real("Mean requests open", "mean_concurrent_requests");
  if (report.contains("verified")) {
    count("Verified requests", "verified");
    count("  of them cache hits", "verified_hits");
    count("  of them with other tokens", "verify_mismatches");
  }
  absl::StrAppendFormat(&text, "\n%-6s", "ms");
  for (const char* statistic : kStatistics) {
    absl::StrAppendFormat(&text, "%11s", statistic);
  }
  for (const char* metric : kMetrics) {
    const bool is_reject = absl::string_view(metric) == "reject";
    if (is_reject && report[Key("mean", metric)].is_null()) continue;
    absl::StrAppendFormat(&text, "\n%-6s", TableName(metric));
    for (const char* statistic : kStatistics) {
      const ordered_json& value = report[Key(statistic, metric)];
      if (value.is_null()) {
        absl::StrAppendFormat(&text, "%11s", "-");
      } else {
        absl::StrAppendFormat(&text, "%11.2f", value.get<double>());
      }
    }
  }
  return absl::StrCat(text, "\n\n", kLatencyDefinitions);
}

std::string FormatRecord(const RequestRecord& record) {
  const RequestLatency& latency = record.latency;
  ordered_json line;
  line["index"] = record.index;
  line["turn"] = record.turn;
  line["request_id"] = record.generation.request_id;
  line["outcome"] = OutcomeName(record.outcome);
  line["status"] = absl::StatusCodeToString(record.status.code());
  line["message"] = std::string(record.status.message());
  line["start_seconds"] = record.start_seconds;
  line["send_lag_ms"] = record.send_lag_ms;
  line["prompt_tokens"] = record.prompt_tokens;
  AddCacheUse(record, &line);
  line["max_new_tokens"] = record.max_new_tokens;
  line["output_tokens"] = record.generation.token_ids.size();
  line["finish_reason"] =
      record.generation.finished
          ? ordered_json(FinishReasonName(record.generation.end.reason()))
          : ordered_json();
  line["ttft_ms"] = latency.ttft_ms.has_value() ? ordered_json(*latency.ttft_ms)
                                                : ordered_json();
  line["tpot_ms"] = latency.tpot_ms.has_value() ? ordered_json(*latency.tpot_ms)
                                                : ordered_json();
  line["e2el_ms"] = latency.e2el_ms;
  line["itl_ms"] = latency.itl_ms;
  line["token_ids"] = record.generation.token_ids;
  // Messages come from the server; invalid bytes in them must not stop the
  // dump.
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace recurve
