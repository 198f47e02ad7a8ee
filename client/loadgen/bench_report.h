#ifndef RECURVE_CLIENT_LOADGEN_BENCH_REPORT_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_REPORT_H_

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/loadgen/bench_arrivals.h"
#include "client/loadgen/bench_goodput.h"
#include "client/loadgen/bench_runner.h"

namespace recurve {

// For each status of failed requests, their number and the first message.
std::map<absl::StatusCode, std::pair<uint64_t, std::string>> CountErrors(
    const BenchResult& result);

// What the figures of a run depend on, in addition to its result.
struct ReportContext {
  ServiceLevel service_level;
  // Open loop only; absent in a closed one.
  std::optional<ArrivalConfig> arrivals;
  // The limit on streams; absent if there was none.
  std::optional<uint32_t> max_concurrency;
};

// The figures of a run, with the keys of `vllm bench serve` where it has them.
// bench_metrics.h defines each. Latencies are
// {mean,median,std,p90,p95,p99,p99.9}_METRIC_ms, where METRIC is ttft,
// ttft_hit, ttft_miss, tpot, itl, e2el, send_lag or reject; null if no request
// has the value.
nlohmann::ordered_json MakeReport(const BenchResult& result,
                                  const ReportContext& context = {});

// "Interrupted<where> after 3.2 s; 5 requests under way are in no figure."
// Empty if the run was not interrupted.
std::string FormatInterruption(const nlohmann::ordered_json& report,
                               absl::string_view where = "");

// The same as a table; ends with the definitions.
std::string FormatReport(const nlohmann::ordered_json& report);

// "completed", "cancelled" or "failed".
const char* OutcomeName(Outcome outcome);

// One request as one line of JSON, without the newline.
std::string FormatRecord(const RequestRecord& record);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_REPORT_H_
