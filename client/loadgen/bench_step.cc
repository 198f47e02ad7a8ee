#include "client/loadgen/bench_step.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace recurve {

BenchStep RateStep(const BenchPlan& plan, double rate, size_t number) {
  BenchStep step;
  step.options = plan.options;
  step.options.arrivals->rate = rate;
  step.rate = rate;
  step.first_index = number * kIndicesPerRun;
  return step;
}

std::vector<BenchStep> PlanSteps(const BenchPlan& plan) {
  std::vector<BenchStep> steps;
  for (const double rate : plan.sweep_rates) {
    steps.push_back(RateStep(plan, rate, steps.size()));
  }
  for (const uint32_t concurrency : plan.sweep_concurrency) {
    BenchStep step;
    step.options = plan.options;
    step.options.concurrency = concurrency;
    step.first_index = steps.size() * kIndicesPerRun;
    steps.push_back(std::move(step));
  }
  if (steps.empty()) {
    steps.emplace_back();
    steps.back().options = plan.options;
  }
  return steps;
}

void SetVerdict(const Verdict& verdict, BenchStep* step) {
  auto& saturated = step->report["saturated"];
  if (verdict.saturated.has_value()) saturated = *verdict.saturated;
  auto& reason = step->report["saturation_reason"];
  if (!verdict.reason.empty()) reason = verdict.reason;
}

bool IsSaturated(const BenchStep& step) {
  const auto found = step.report.find("saturated");
  return found != step.report.end() && found->is_boolean() &&
         found->get<bool>();
}

const std::string* UnknownReason(const BenchStep& step) {
  const auto found = step.report.find("saturated");
  if (found == step.report.end() || !found->is_null()) return nullptr;
  return step.report["saturation_reason"].get_ptr<const std::string*>();
}

std::vector<SweepPoint> PointsOf(const std::vector<BenchStep>& steps) {
  std::vector<SweepPoint> points;
  for (const BenchStep& step : steps) {
    const auto found = step.report.find("saturated");
    if (found == step.report.end() || found->is_null()) continue;
    points.push_back({step.rate, found->get<bool>()});
  }
  return points;
}

ReportContext ContextOf(const BenchPlan& plan, const BenchOptions& options) {
  ReportContext context;
  context.service_level = plan.service_level;
  context.arrivals = options.arrivals;
  if (options.arrivals.has_value()) {
    context.max_concurrency = plan.max_concurrency;
  } else {
    context.max_concurrency = options.concurrency;
  }
  return context;
}

std::string StepLabel(const BenchOptions& options) {
  if (!options.arrivals.has_value()) {
    return absl::StrCat(options.concurrency,
                        options.concurrency == 1 ? " stream" : " streams");
  }
  if (options.arrivals->trace != nullptr) return "trace";
  return absl::StrFormat("%.6g requests/s", options.arrivals->rate);
}

std::string FormatSweep(const std::vector<BenchStep>& steps) {
  std::string text = absl::StrFormat(
      "%-18s%7s%7s%9s%9s%10s%8s%19s%19s%10s\n%-18s%7s%7s%9s%9s%10s%8s%10s%9s%"
      "10s%"
      "9s%10s\n",
      "", "", "", "requests", "good", "output", "cached", "TTFT ms", "ITL ms",
      "LAG ms", "load", "done", "failed", "/s", "/s", "tokens/s", "%", "p50",
      "p99", "p50", "p99", "p99");
  for (const BenchStep& step : steps) {
    const auto& report = step.report;
    const auto real = [&](const char* key, int width) {
      const auto& value = report[key];
      absl::StrAppend(
          &text, value.is_null()
                     ? absl::StrFormat("%*s", width, "-")
                     : absl::StrFormat("%*.2f", width, value.get<double>()));
    };
    absl::StrAppendFormat(&text, "%-18s%7d%7d", StepLabel(step.options),
                          report["completed"].get<uint64_t>(),
                          report["failed"].get<uint64_t>());
    real("request_throughput", 9);
    real("request_goodput", 9);
    real("output_throughput", 10);
    const auto& cached = report["cache_token_hit_rate"];
    absl::StrAppend(&text,
                    cached.is_null()
                        ? absl::StrFormat("%8s", "-")
                        : absl::StrFormat("%8.1f", 100 * cached.get<double>()));
    real("median_ttft_ms", 10);
    real("p99_ttft_ms", 9);
    real("median_itl_ms", 10);
    real("p99_itl_ms", 9);
    real("p99_send_lag_ms", 10);
    if (IsSaturated(step)) absl::StrAppend(&text, "  saturated");
    if (UnknownReason(step) != nullptr) absl::StrAppend(&text, "  unknown");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace recurve
