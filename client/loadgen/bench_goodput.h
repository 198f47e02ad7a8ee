#ifndef RECURVE_CLIENT_LOADGEN_BENCH_GOODPUT_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_GOODPUT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/loadgen/bench_latency.h"

namespace recurve {

// Latency limits of a good request, in milliseconds; an absent one is not
// checked.
struct ServiceLevel {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;

  bool any() const {
    return ttft_ms.has_value() || tpot_ms.has_value() || e2el_ms.has_value();
  }
};

// From items like "ttft:200", as `vllm bench serve --goodput`. InvalidArgument
// quotes the item.
absl::StatusOr<ServiceLevel> ParseServiceLevel(
    const std::vector<std::string>& items);

// Whether a completed request met them: each latency at most its limit. A
// request of one token has no TPOT and meets any limit on it.
bool KeepsServiceLevel(const RequestLatency& latency,
                       const ServiceLevel& level);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_GOODPUT_H_
