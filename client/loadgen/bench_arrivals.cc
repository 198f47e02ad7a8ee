#include "client/loadgen/bench_arrivals.h"

#include "client/loadgen/bench_random.h"

namespace recurve {
namespace {

// Makes the draws for gaps differ from those for prompts.
constexpr uint64_t kGapStream = 0x9d3c5a7be1f02468u;

}  // namespace

std::optional<double> ArrivalSchedule::Next() {
  const uint64_t i = next_++;
  if (config_.trace != nullptr) {
    if (i >= config_.trace->size()) return std::nullopt;
    return (*config_.trace)[i].seconds / config_.trace_speed;
  }
  // A product, not a sum of gaps: errors do not accumulate.
  if (config_.constant) return static_cast<double>(i) / config_.rate;
  if (i > 0) {
    BenchDraws draws(config_.seed ^ kGapStream, i);
    seconds_ +=
        draws.Gamma(config_.burstiness) / (config_.burstiness * config_.rate);
  }
  return seconds_;
}

}  // namespace recurve
