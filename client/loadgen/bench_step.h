#ifndef RECURVE_CLIENT_LOADGEN_BENCH_STEP_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_STEP_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/loadgen/bench_plan.h"
#include "client/loadgen/bench_report.h"
#include "client/loadgen/bench_runner.h"
#include "client/loadgen/bench_sweep.h"

namespace recurve {

// One run of a bench: the only one, or one step of a sweep.
struct BenchStep {
  BenchOptions options;
  // For a sweep over rates, in requests a second.
  double rate = 0;
  // First of its conversations in the workload: no two steps share prompts.
  uint64_t first_index = 0;
  BenchResult result;
  // From MakeReport; in a sweep over rates also the verdict, as `saturated` and
  // `saturation_reason`.
  nlohmann::ordered_json report;
};

// The steps of a plan, without results; one if it is no sweep.
std::vector<BenchStep> PlanSteps(const BenchPlan& plan);

// Step number `number`, from 0, at `rate`.
BenchStep RateStep(const BenchPlan& plan, double rate, size_t number);

void SetVerdict(const Verdict& verdict, BenchStep* step);
bool IsSaturated(const BenchStep& step);
// Why the step has no verdict on saturation; null if it has one.
const std::string* UnknownReason(const BenchStep& step);
// The steps of a sweep over rates that have a verdict on saturation.
std::vector<SweepPoint> PointsOf(const std::vector<BenchStep>& steps);

// The context that MakeReport needs.
ReportContext ContextOf(const BenchPlan& plan, const BenchOptions& options);

// "8 requests/s", "16 streams", "trace".
std::string StepLabel(const BenchOptions& options);

// A table of the steps, one a line.
std::string FormatSweep(const std::vector<BenchStep>& steps);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_STEP_H_
