#ifndef RECURVE_CLIENT_BENCH_REPORT_H_
#define RECURVE_CLIENT_BENCH_REPORT_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/bench_runner.h"

namespace recurve {

// How often each status ended a request in failure, and the first message.
std::map<absl::StatusCode, std::pair<uint64_t, std::string>> CountErrors(
    const BenchResult& result);

// The figures of a run, with the keys of `vllm bench serve` where that has
// them: counts, token totals of completed requests, rates by `duration` in
// seconds, and {mean,median,std,p90,p95,p99,p99.9}_{ttft,tpot,itl,e2el}_ms over
// completed requests (null when no request has the value).
nlohmann::ordered_json MakeReport(const BenchResult& result);

// The same as a table for people; ends with the definitions.
std::string FormatReport(const nlohmann::ordered_json& report);

// One request as one line of JSON, without the newline.
std::string FormatRecord(const RequestRecord& record);

}  // namespace recurve

#endif  // RECURVE_CLIENT_BENCH_REPORT_H_
