#ifndef RECURVE_SERVER_TELEMETRY_PROCESS_METRICS_H_
#define RECURVE_SERVER_TELEMETRY_PROCESS_METRICS_H_

#include <cstdint>
#include <vector>

#include "prometheus/metric_family.h"

namespace recurve {

// What Prometheus' own clients say of their process, under the names that
// dashboards and alerts know: process_start_time_seconds,
// process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds.
// Read from /proc at each scrape; what cannot be read is left out, since a 0
// would be a lie. Thread-safe.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

// Memory of the process that is in RAM; 0 where /proc does not say.
int64_t ResidentBytes();

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_PROCESS_METRICS_H_
