#ifndef RECURVE_TESTS_TESTING_FAKE_RUNNER_H_
#define RECURVE_TESTS_TESTING_FAKE_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/program/model_runner.h"
#include "engine/program/step.h"
#include "kernels/sampling/sampling.h"

namespace recurve {

struct FakeRunnerOptions {
  int32_t num_pages = 64;  // 0: a model that needs no pages
  int32_t num_slots = 8;
  int64_t vocab_size = 258;
  int64_t chunk_multiple = 1;
  bool whole_prompts = false;
  // Whether prompts use a different computation from steps, as on a GPU.
  bool kinds_matter = true;
  int32_t num_host_blocks = 0;  // of one page, or slot
  // Steps until a restore completes, unless it is awaited.
  int64_t restore_steps = 0;
  std::vector<int32_t> eos_token_ids;
  // Only bytes that are printable ASCII are ever drawn.
  bool printable = false;
  // This run, counted from 1, fails like a device; 0: none.
  int64_t fail_on_run = 0;
  // In this run memory for logits runs out, if any are wanted; 0: none.
  int64_t no_logits_on_run = 0;
  // Rows that compute this token have only broken_logit as logits, and it is
  // never drawn.
  int32_t broken_token = -1;
  float broken_logit = std::numeric_limits<float>::quiet_NaN();
  std::chrono::microseconds step_time{0};
  // A step is computed at its launch, after all earlier operations, but its
  // results and errors are returned by Wait.
  bool runs_ahead = false;
  // The step's reported device time; null: not measured.
  std::function<double(const StepBatch&)> device_seconds;
  // Called on the step thread, before the batch is computed.
  std::function<void(const StepBatch&)> on_run;
};

// A model with memory and no network. Each token stores a hash of itself, its
// kind and its position in its page cell, and is folded into the state of its
// slot, which can be neither repeated nor undone. The logits of a row are a
// hash of that state and of all cells up to its position, read through the page
// table. So any wrong page, slot, position or kind, any missing or repeated
// update, and any remnant of an earlier owner changes tokens. With
// whole_prompts the state also depends on the number of tokens of the first
// prompt in its first step.
//
// Detectable violations are also reported directly: Run then returns INTERNAL
// with the violation, which ends all streams.
//
// Thread safety: as ModelRunner.
class FakeRunner : public ModelRunner, private CacheStorage {
 public:
  explicit FakeRunner(FakeRunnerOptions options);

  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override;
  CacheStorage& storage() override { return *this; }
  absl::Status Run(const StepBatch& batch, StepOutput* output) override;
  bool runs_ahead() const override { return options_.runs_ahead; }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status Wait(StepOutput* output) override;

 private:
  // A step that was launched and not waited for.
  struct Launched {
    absl::Status status;
    StepOutput output;
    std::vector<float> logits;
    std::vector<int32_t> kept;
  };

  struct State {
    uint64_t fold = 0;
    int64_t tokens_applied = 0;  // -1: poisoned
  };

  absl::Status ClearPage(int32_t page) override;
  absl::Status ClearSlot(int32_t slot) override;
  absl::Status PoisonPage(int32_t page) override;
  absl::Status PoisonSlot(int32_t slot) override;
  absl::Status Save(const SavedMemory& memory) override;
  absl::Status Restore(const SavedMemory& memory) override;
  absl::Span<char> HostBlock(int32_t block) override;
  bool Restored(int32_t slot) override;

  // `batch` with its fed tokens filled in.
  StepBatch Feed(const StepBatch& batch) const;
  absl::Status Compute(const StepBatch& batch, StepOutput* output);
  // `rows` of `logits`.
  std::vector<absl::Span<const float>> Kept(
      absl::Span<const float> logits, absl::Span<const int32_t> rows) const;
  absl::Status CheckShape(const StepBatch& batch) const;
  absl::Status CheckSequence(const StepBatch& batch, int64_t sequence) const;
  absl::Status CheckDistinct(const StepBatch& batch) const;
  // Checks that the rows of `sequence` begin where a step may have ended.
  absl::Status CheckCut(const StepBatch& batch, int64_t sequence) const;
  absl::Status ComputeSequence(const StepBatch& batch, int64_t sequence);
  uint64_t& Cell(const StepBatch& batch, int64_t sequence, int64_t position);

  const FakeRunnerOptions options_;
  ModelInfo info_;
  std::vector<uint64_t> cells_;  // [pages + 1, 64]; 0: cleared
  std::vector<State> slots_;     // [slots + 1]
  // A block's contents: the cells of a page, or a state in the first two words;
  // last, which of them.
  std::vector<std::vector<uint64_t>> blocks_;  // [blocks + 1]
  std::vector<int64_t> restored_at_;           // [slots + 1], as runs_
  std::vector<float> logits_;
  SamplingScratch scratch_;
  int64_t runs_ = 0;
  std::vector<int32_t> sampled_;  // by the last step
  std::deque<Launched> launched_;
  std::vector<float> waited_logits_;
};

// The expected logits of a FakeRunner after `tokens` of these kinds, computed
// from them alone. [vocab]
// REQUIRES: !options.whole_prompts.
std::vector<float> FakeLogits(absl::Span<const int32_t> tokens,
                              absl::Span<const TokenKind> kinds,
                              const FakeRunnerOptions& options);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_FAKE_RUNNER_H_
