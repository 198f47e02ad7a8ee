#ifndef RECURVE_TESTS_TESTING_RECORDING_SINK_H_
#define RECURVE_TESTS_TESTING_RECORDING_SINK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "engine/serving/event_sink.h"

namespace recurve {

// An engine's reports on one sequence.
struct StreamRecord {
  bool admitted = false;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // parallel to tokens
  std::string text;
  std::vector<StepEvent::LogitsRow> logits;
  std::vector<StepEvent::PromptLogprob> prompt_logprobs;
  std::vector<CommandResult> results;
  std::optional<absl::Status> end;
  int ends = 0;
  // The first violation of EventSink's contract; empty: none.
  std::string violation;

  std::vector<int64_t> LogitsPositions() const;
};

// Records all reports and checks their order.
//
// Thread safety: the getters may be called from any thread.
class RecordingSink : public EventSink {
 public:
  // `stalls` is called at each step, on the step thread: whether the reader is
  // behind; null: never.
  explicit RecordingSink(std::function<bool()> stalls = nullptr)
      : stalls_(std::move(stalls)) {}

  void OnAdmitted(double queue_seconds) override;
  bool OnStep(StepEvent event) override;
  void OnCommandDone(CommandResult result) override;
  void OnEnd(absl::Status status) override;

  StreamRecord Record() const;
  // These wait, for a minute at most, until the stream has ended or has that
  // much.
  StreamRecord WaitEnd() const;
  StreamRecord WaitTokens(size_t count) const;
  StreamRecord WaitCommands(size_t count) const;
  // The next command goes back to a point with `generated` tokens generated.
  void ExpectRollback(int64_t generated);
  // Whether it returned false since the last call.
  bool TakeStall();

 private:
  template <typename Condition>
  StreamRecord Wait(Condition condition) const;
  void Expect(bool ok, const char* rule) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<bool()> stalls_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  StreamRecord record_ ABSL_GUARDED_BY(mu_);
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool only_end_ ABSL_GUARDED_BY(mu_) = false;  // may come from here on
  int64_t last_row_ ABSL_GUARDED_BY(mu_) = -1;  // of this command
  int64_t next_index_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_RECORDING_SINK_H_
