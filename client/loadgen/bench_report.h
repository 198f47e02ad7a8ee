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

// How often each status ended a request in failure, and the first message.
std::map<absl::StatusCode, std::pair<uint64_t, std::string>> CountErrors(
    const BenchResult& result);

// What of a run its figures depend on, besides its result.
struct ReportContext {
  ServiceLevel service_level;
  // Of an open loop; absent in a closed one.
  std::optional<ArrivalConfig> arrivals;
  // The bound on streams; absent when there was none.
  std::optional<uint32_t> max_concurrency;
};

// The figures of a run, with the keys of `vllm bench serve` where that has
// them. bench_metrics.h says what each means. Latencies are
// {mean,median,std,p90,p95,p99,p99.9}_{ttft,tpot,itl,e2el,send_lag,reject}_ms,
// null when no request has the value.
nlohmann::ordered_json MakeReport(const BenchResult& result,
                                  const ReportContext& context = {});

// "Interrupted<where> after 3.2 s; 5 requests under way are in no figure."
// Empty when the run was not.
std::string FormatInterruption(const nlohmann::ordered_json& report,
                               absl::string_view where = "");

// The same as a table for people; ends with the definitions.
std::string FormatReport(const nlohmann::ordered_json& report);

// "completed", "cancelled" or "failed".
const char* OutcomeName(Outcome outcome);

// One request as one line of JSON, without the newline.
std::string FormatRecord(const RequestRecord& record);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_REPORT_H_
