#ifndef RECURVE_SERVER_TELEMETRY_PROCESS_METRICS_H_
#define RECURVE_SERVER_TELEMETRY_PROCESS_METRICS_H_

#include <cstdint>
#include <vector>

#include "prometheus/metric_family.h"

namespace recurve {

// The process metrics of Prometheus' own client libraries, under the names that
// dashboards and alerts expect: process_start_time_seconds,
// process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds.
// Read from /proc at each scrape; unreadable ones are omitted, because 0 would
// be wrong. Thread-safe.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

// Resident memory of the process; 0 if /proc does not say.
int64_t ResidentBytes();

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_PROCESS_METRICS_H_
