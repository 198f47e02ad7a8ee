#ifndef RECURVE_TESTS_TESTING_ENGINE_HARNESS_H_
#define RECURVE_TESTS_TESTING_ENGINE_HARNESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "engine/serving/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/fake_runner.h"
#include "tests/testing/recording_sink.h"

namespace recurve {

// Commands on one sequence, and its sampling.
struct Script {
  SequenceOptions options;
  std::vector<Command> commands;

  // One command that generates `generate` tokens.
  static Script Generate(std::vector<int32_t> prompt, int64_t generate,
                         LogitsMode logits = LogitsMode::kNone);
};

// A prompt of random tokens.
std::vector<int32_t> Prompt(int64_t tokens, uint64_t seed = 1);

// Adds the kinds of `count` tokens that one command appends.
void AppendKinds(int64_t count, std::vector<TokenKind>* kinds);

// Options for an engine with all of a FakeRunner's memory: only the runner's
// own limits, released memory poisoned.
EngineOptions OptionsFor(const FakeRunnerOptions& fake);

// REQUIRES: the options are valid.
std::unique_ptr<Engine> MakeEngine(const EngineOptions& options,
                                   const FakeRunnerOptions& fake,
                                   const Tokenizer* tokenizer = nullptr);

// Runs all commands on an otherwise idle engine.
StreamRecord RunAlone(Engine& engine, const Script& script);

// As RunAlone, on a new engine with ample resources.
StreamRecord RunSolo(const FakeRunnerOptions& model, const Script& script,
                     const Tokenizer* tokenizer = nullptr);

// Submits the first command. `sink` may be shared with the caller.
absl::StatusOr<uint64_t> Submit(Engine& engine, const Script& script,
                                std::shared_ptr<EventSink> sink,
                                bool close_when_done = true);

// Whether no request is open and all memory is free.
bool IsIdle(const Engine& engine);

// Stops an engine's steps at chosen points: pass Enter to a FakeRunner as
// on_run. Open until held. Open() must be called before the engine ends.
class StepGate {
 public:
  void Enter(const StepBatch& batch);

  // From the next step on, steps stop before they compute.
  void Hold();
  // Waits until a step is stopped; returns its number, from 1. Ends the test
  // after a minute without one.
  int64_t WaitHeld();
  // Releases the stopped step; the next one stops again.
  void Pass();
  void Open();

  int64_t steps() const;
  // Sequences in the batch of the last step to enter.
  int64_t last_sequences() const;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool holding_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  bool pass_ ABSL_GUARDED_BY(mu_) = false;
  int64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_sequences_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_ENGINE_HARNESS_H_
