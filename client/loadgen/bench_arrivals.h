#ifndef RECURVE_CLIENT_LOADGEN_BENCH_ARRIVALS_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_ARRIVALS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/loadgen/bench_trace.h"

namespace recurve {

// Arrival times of the requests of an open loop, independent of the server.
struct ArrivalConfig {
  // Requests a second, > 0. Unused with a trace.
  double rate = 0;
  // Evenly spaced: one request each 1/rate seconds.
  bool constant = false;
  // Otherwise gaps are gamma distributed with this shape and the mean 1/rate,
  // as `vllm bench serve --burstiness`: 1 is a Poisson process, less comes in
  // bursts, more is steadier. Their coefficient of variation is
  // 1/sqrt(burstiness).
  double burstiness = 1;
  uint64_t seed = 0;
  // If set, arrivals at the times of this trace divided by `trace_speed`.
  std::shared_ptr<const std::vector<TraceEntry>> trace;
  double trace_speed = 1;
};

// Request i's time depends on (config, i) alone; gaps are not rescaled to make
// a finite run hit its rate exactly, so that bursts are preserved.
// Thread safety: none.
class ArrivalSchedule {
 public:
  explicit ArrivalSchedule(const ArrivalConfig& config) : config_(config) {}

  // Seconds from the start of the run to the next arrival, the first at 0;
  // nothing after the end of a trace.
  std::optional<double> Next();

 private:
  const ArrivalConfig config_;
  uint64_t next_ = 0;
  double seconds_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_ARRIVALS_H_
