#ifndef RECURVE_CLIENT_LOADGEN_BENCH_LATENCY_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_LATENCY_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace recurve {

// The definitions below in words, for --help and reports.
extern const char kLatencyDefinitions[];

using BenchClock = std::chrono::steady_clock;

// The arrival of one tokens event at the client.
struct TokenArrival {
  BenchClock::time_point at;
  uint32_t tokens = 0;  // >= 1
};

// Latencies of one stream as measured by its client, in milliseconds.
struct RequestLatency {
  // Absent without tokens.
  std::optional<double> ttft_ms;
  // Absent with fewer than two tokens.
  std::optional<double> tpot_ms;
  // One value for each token after the first event's.
  std::vector<double> itl_ms;
  double e2el_ms = 0;
};

// REQUIRES: arrivals in chronological order.
RequestLatency ComputeLatency(BenchClock::time_point sent,
                              const std::vector<TokenArrival>& arrivals,
                              BenchClock::time_point ended);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_LATENCY_H_
