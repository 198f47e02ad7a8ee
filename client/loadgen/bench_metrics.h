#ifndef RECURVE_CLIENT_LOADGEN_BENCH_METRICS_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_METRICS_H_

#include <string>
#include <vector>

namespace recurve {

// The meaning of one figure of a report.
struct MetricDefinition {
  const char* name;  // its key in the JSON, or a part of several keys
  const char* unit;  // "" if dimensionless
  const char* meaning;
};

// The definitions of all figures in the JSON, in its order. Names of the
// latencies (ttft, tpot, itl, e2el, send_lag) stand for the keys
// STATISTIC_NAME_ms.
const std::vector<MetricDefinition>& MetricDefinitions();

// All of them as text for a terminal.
std::string ExplainMetrics();

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_METRICS_H_
