#ifndef RECURVE_SERVER_TELEMETRY_METRIC_ALIASES_H_
#define RECURVE_SERVER_TELEMETRY_METRIC_ALIASES_H_

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace recurve {

// Adds those of `families` that vLLM has, too, under vLLM's names and with its
// label model_name: routers and dashboards with fixed names read them. Pure.
void AddVllmNames(const std::string& model_name,
                  std::vector<prometheus::MetricFamily>* families);

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_METRIC_ALIASES_H_
