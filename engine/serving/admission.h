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

// Whether a ResourceExhausted means a deadline that cannot be met.
bool IsTooLate(const absl::Status& status);

// Decides which sequences to accept: those that find a place and whose tokens
// can be ready in time.
//
// Places. At most max_active sequences run or wait; including idle ones,
// between two commands, at most kMaxOpen times as many are open. Flows share
// both numbers: fair_places.h.
//
// Time. A sequence's work is counted in steps: one for each token to generate,
// and one for each max_step_tokens of its prompt. If it may stop early, only
// the fraction of the requested tokens that its flow recently generated is
// counted. A flow's share of the slots s is given by its weight, or is what the
// other flows leave if that is more. If n steps of work wait in the flow with
// at least the same priority, and a sequence takes m steps on average, a new
// one waits about (n + m) / s steps, or not at all if some of the s slots are
// free. The step time is a recent average.
//
// Until a step and a sequence have completed there are no estimates, and no
// sequence counts as late. Estimates decide only which sequences are refused,
// never which tokens a sequence gets.
//
// Not thread-safe.
class Admission {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kMaxOpen = 4;

  struct Limits {
    int64_t slots = 1;            // sequences that run at a time
    int64_t max_active = 1;       // that run or wait
    int64_t max_step_tokens = 1;  // per step
  };
  explicit Admission(const Limits& limits)
      : limits_(limits),
        active_(limits.max_active),
        open_(kMaxOpen * limits.max_active) {}

  // The work that a sequence requests, or has left.
  struct Work {
    int64_t prompt_tokens = 0;
    int64_t generate = 0;
    bool may_stop = false;  // before it has generated that many
  };

  // --- Places ---

  // ResourceExhausted if `count` more sequences of this flow have no place.
  absl::Status CheckPlaces(const Flow& flow, int64_t count) const;
  // A sequence is open, and active.
  void Open(const Flow& flow);
  // An active sequence becomes idle, or an idle one active again.
  void SetIdle(const Flow& flow) { active_.Give(flow, 1); }
  void SetActive(const Flow& flow) { active_.Take(flow, 1); }
  // The sequence has ended.
  void Close(const Flow& flow, bool active);

  // --- Time ---

  // ResourceExhausted, with IsTooLate, if waiting would prevent `work` from
  // being done by `deadline`.
  absl::Status CheckTime(const Flow& flow, int32_t priority, const Work& work,
                         Clock::time_point now,
                         Clock::time_point deadline) const;
  // DeadlineExceeded if the wait since `submitted` prevents `work`, started
  // now, from being done by `deadline`.
  absl::Status CheckStart(const Flow& flow, const Work& work,
                          Clock::time_point submitted, Clock::time_point now,
                          Clock::time_point deadline) const;

  // A sequence begins to wait for memory, with `work` left to do; and stops
  // waiting, with the same `work`.
  void BeginWaiting(const Flow& flow, int32_t priority, const Work& work);
  void EndWaiting(const Flow& flow, int32_t priority, const Work& work);
  // A sequence begins to run (has memory and work); and stops.
  void BeginRunning(const Flow& flow);
  void EndRunning(const Flow& flow);

  // A step that followed another without a pause took `seconds`.
  void OnStep(double seconds);
  // The command `asked` completed with `generated` tokens.
  void OnDone(const Flow& flow, const Work& asked, int64_t generated);

  // In seconds; nothing while there is no estimate.
  std::optional<double> EstimateWait(const Flow& flow, int32_t priority) const;
  std::optional<double> EstimateRun(const Flow& flow, const Work& work) const;

  // Running and waiting sequences of one flow.
  int64_t running(uint32_t flow) const;
  int64_t waiting(uint32_t flow) const;

 private:
  // The waiting work of one priority.
  struct Backlog {
    double sure_steps = 0;
    int64_t stoppable_tokens = 0;
    int64_t sequences = 0;
  };
  struct FlowState {
    double weight = 1;
    int64_t running = 0;
    int64_t waiting = 0;
    std::map<int32_t, Backlog> backlog;    // by priority; non-empty ones only
    std::optional<double> generated_part;  // recent mean for work that may stop
                                           // early
  };

  FlowState& StateOf(const Flow& flow);
  const FlowState* Find(uint32_t flow) const;
  double PromptSteps(int64_t tokens) const;
  // The slots that the flow may use, and how many of them are free.
  struct Slots {
    double share = 0;
    double free = 0;
  };
  Slots SlotsOf(const Flow& flow) const;

  const Limits limits_;
  std::map<uint32_t, FlowState> flows_;  // all flows seen so far
  FairPlaces active_;
  FairPlaces open_;
  std::optional<double> step_seconds_;        // recent mean
  std::optional<double> steps_per_sequence_;  // recent mean
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_ADMISSION_H_
