#ifndef RECURVE_ENGINE_SERVING_OBSERVER_H_
#define RECURVE_ENGINE_SERVING_OBSERVER_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/serving/cache_use.h"
#include "engine/serving/event_sink.h"

namespace recurve {

// A snapshot of an engine's load.
struct EngineLoad {
  int64_t resident = 0;  // sequences that hold memory
  int64_t waiting = 0;
  int64_t slots_used = 0;
  int64_t slots_total = 0;
  int64_t pages_used = 0;
  int64_t pages_total = 0;
  uint64_t prompt_tokens_total = 0;
  uint64_t generation_tokens_total = 0;
  uint64_t preemptions_total = 0;
  // Preemptions that were saved in host memory; restored from it; recomputed in
  // part or whole because there was no room.
  uint64_t saves_total = 0;
  uint64_t restores_total = 0;
  uint64_t recomputes_total = 0;
  int64_t swap_bytes_used = 0;  // in host memory
  int64_t swap_bytes_total = 0;
  int64_t snapshots = 0;  // in the prefix cache
  // Host memory that they, and what running sequences hold of them, take.
  int64_t prefix_cache_bytes_used = 0;
  int64_t prefix_cache_bytes_total = 0;
  int64_t states = 0;  // with names, and the memory they take
  int64_t state_bytes_used = 0;
  int64_t state_bytes_total = 0;
  uint64_t snapshots_total = 0;
  uint64_t snapshot_evictions_total = 0;
  uint64_t cached_prompt_tokens_total = 0;
  // First commands that ran to their end, by CacheMiss.
  std::array<uint64_t, kNumCacheMisses> prompts_by_miss_total = {};
  uint64_t steps_total = 0;
  // Time in which the device waited for the engine although there was work; 0
  // if it is not measured.
  double device_idle_seconds_total = 0;
  // Requests accepted and not ended.
  int64_t open = 0;
};

// Receives engine events for metrics. Called on the step thread; must not
// block. Times are in seconds.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnStepDone(int64_t /*sequences*/, int64_t /*tokens*/,
                          double /*seconds*/) {}
  // After every step, and whenever the load may have changed.
  virtual void OnLoad(const EngineLoad& /*load*/) {}
  virtual void OnQueued(double /*queue_seconds*/) {}
  virtual void OnFirstToken(double /*seconds_since_submit*/) {}
  virtual void OnNextToken(double /*seconds_since_last_token*/) {}
  // A command completed.
  virtual void OnCommandDone(const CommandResult& /*result*/) {}
  // A sequence ended with an error.
  virtual void OnFailed(const absl::Status& /*status*/) {}
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_OBSERVER_H_
