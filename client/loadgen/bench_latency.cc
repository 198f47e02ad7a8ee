#include "client/loadgen/bench_latency.h"

namespace recurve {
namespace {

double Milliseconds(BenchClock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

const char kLatencyDefinitions[] =
    "TTFT: from sending the request to its first tokens event (queueing and "
    "prefill included); also of the prefix cache's hits and misses alone.\n"
    "TPOT: (last tokens event - first tokens event) / (tokens - 1), one value "
    "a request; requests of one token have none.\n"
    "ITL: the gap between two tokens events divided by the tokens of the later "
    "one, counted once for each of those tokens.\n"
    "E2EL: from sending the request to its final status.\n"
    "LAG: how late the client sent a request.\n"
    "All are measured by the client over completed requests; percentiles are "
    "interpolated linearly; std is of the population. --explain says more.\n";

RequestLatency ComputeLatency(BenchClock::time_point sent,
                              const std::vector<TokenArrival>& arrivals,
                              BenchClock::time_point ended) {
  RequestLatency latency;
  latency.e2el_ms = Milliseconds(ended - sent);
  if (arrivals.empty()) return latency;
  latency.ttft_ms = Milliseconds(arrivals.front().at - sent);
  uint64_t tokens = arrivals.front().tokens;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = Milliseconds(arrivals[i].at - arrivals[i - 1].at);
    tokens += arrivals[i].tokens;
    latency.itl_ms.insert(latency.itl_ms.end(), arrivals[i].tokens,
                          gap / arrivals[i].tokens);
  }
  if (tokens > 1) {
    latency.tpot_ms = Milliseconds(arrivals.back().at - arrivals.front().at) /
                      static_cast<double>(tokens - 1);
  }
  return latency;
}

}  // namespace recurve
