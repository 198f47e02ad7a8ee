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
  // Of a sweep over rates, in requests a second.
  double rate = 0;
  // Of its conversations in the workload: no two steps share prompts.
  uint64_t first_index = 0;
  BenchResult result;
  // Of MakeReport; steps of a sweep over rates have their verdict too, as
  // `saturated` and `saturation_reason`.
  nlohmann::ordered_json report;
};

// The steps that a plan names, without results; one when it is no sweep.
std::vector<BenchStep> PlanSteps(const BenchPlan& plan);

// Step number `number`, from 0, at `rate`.
BenchStep RateStep(const BenchPlan& plan, double rate, size_t number);

void SetVerdict(const Verdict& verdict, BenchStep* step);
bool IsSaturated(const BenchStep& step);
// Why the step does not say whether it saturated the server; null if it does.
const std::string* UnknownReason(const BenchStep& step);
// Those of a sweep over rates that say whether they saturated the server.
std::vector<SweepPoint> PointsOf(const std::vector<BenchStep>& steps);

// What MakeReport needs to know of a step.
ReportContext ContextOf(const BenchPlan& plan, const BenchOptions& options);

// "8 requests/s", "16 streams", "trace".
std::string StepLabel(const BenchOptions& options);

// A table of the steps, one a line, for people.
std::string FormatSweep(const std::vector<BenchStep>& steps);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_STEP_H_
