#ifndef RECURVE_ENGINE_SERVING_ADMISSION_H_
#define RECURVE_ENGINE_SERVING_ADMISSION_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "engine/serving/fair_places.h"
#include "engine/serving/request.h"

namespace recurve {

// Whether ResourceExhausted is for a deadline that cannot be met.
bool IsTooLate(const absl::Status& status);

// Which sequences are taken in: those that find a place, and that may have
// their tokens in time.
//
// Places. At most max_active sequences run or wait; with those that are idle,
// between two commands, at most kMaxOpen times as many are open. Flows share
// both numbers: fair_places.h.
//
// Time. What a sequence asks for is counted in steps: one a token it generates,
// and one a max_step_tokens of its prompt. Where it may stop early, as much of
// what it asks for counts as was generated of late by its flow. A flow has its
// weight's part of the slots, or what the others leave if that is more: s. If
// steps of n wait there with at least the same priority, and sequences take m
// steps, one more waits about (n + m) / s steps, or not at all if not all of s
// are taken. Steps take as long as they did of late.
//
// Before a step and a sequence are done nothing is known, and nobody is late.
// These estimates decide who is refused, never which tokens a sequence gets.
//
// Not thread-safe.
class Admission {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kMaxOpen = 4;

  struct Limits {
    int64_t slots = 1;            // sequences that run at a time
    int64_t max_active = 1;       // that run or wait
    int64_t max_step_tokens = 1;  // of a step
  };
  explicit Admission(const Limits& limits)
      : limits_(limits),
        active_(limits.max_active),
        open_(kMaxOpen * limits.max_active) {}

  // What a sequence asks for, or has left.
  struct Work {
    int64_t prompt_tokens = 0;
    int64_t generate = 0;
    bool may_stop = false;  // before it has generated as many
  };

  // --- Places ---

  // ResourceExhausted if `count` more of this flow have no place.
  absl::Status CheckPlaces(const Flow& flow, int64_t count) const;
  // A sequence is there, and is active.
  void Open(const Flow& flow);
  // It is idle, or active again.
  void SetIdle(const Flow& flow) { active_.Give(flow, 1); }
  void SetActive(const Flow& flow) { active_.Take(flow, 1); }
  // It is gone.
  void Close(const Flow& flow, bool active);

  // --- Time ---

  // ResourceExhausted, of which IsTooLate holds, if the wait is what keeps
  // `work` from being done by `deadline`.
  absl::Status CheckTime(const Flow& flow, int32_t priority, const Work& work,
                         Clock::time_point now,
                         Clock::time_point deadline) const;
  // DeadlineExceeded if it was its wait since `submitted` that keeps `work`,
  // started now, from being done by `deadline`.
  absl::Status CheckStart(const Flow& flow, const Work& work,
                          Clock::time_point submitted, Clock::time_point now,
                          Clock::time_point deadline) const;

  // A sequence begins to wait for memory, with what it has left to do; and
  // ends, with the same.
  void BeginWaiting(const Flow& flow, int32_t priority, const Work& work);
  void EndWaiting(const Flow& flow, int32_t priority, const Work& work);
  // A sequence has memory, and work; and has not.
  void BeginRunning(const Flow& flow);
  void EndRunning(const Flow& flow);

  // A step that followed another without a pause took so long.
  void OnStep(double seconds);
  // `asked` was done, with so many tokens generated.
  void OnDone(const Flow& flow, const Work& asked, int64_t generated);

  // In seconds; nothing while that is not known.
  std::optional<double> EstimateWait(const Flow& flow, int32_t priority) const;
  std::optional<double> EstimateRun(const Flow& flow, const Work& work) const;

  // Of one flow: those that run, and that wait.
  int64_t running(uint32_t flow) const;
  int64_t waiting(uint32_t flow) const;

 private:
  // What waits, with one priority.
  struct Backlog {
    double sure_steps = 0;
    int64_t stoppable_tokens = 0;
    int64_t sequences = 0;
  };
  struct FlowState {
    double weight = 1;
    int64_t running = 0;
    int64_t waiting = 0;
    std::map<int32_t, Backlog> backlog;    // by priority; those that have any
    std::optional<double> generated_part;  // of what may stop, of late
  };

  FlowState& StateOf(const Flow& flow);
  const FlowState* Find(uint32_t flow) const;
  double PromptSteps(int64_t tokens) const;
  // Slots that the flow may have, and those of them that are free.
  struct Slots {
    double share = 0;
    double free = 0;
  };
  Slots SlotsOf(const Flow& flow) const;

  const Limits limits_;
  std::map<uint32_t, FlowState> flows_;  // all that were seen
  FairPlaces active_;
  FairPlaces open_;
  std::optional<double> step_seconds_;        // of late
  std::optional<double> steps_per_sequence_;  // of late
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_ADMISSION_H_
