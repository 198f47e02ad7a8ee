#ifndef RECURVE_ENGINE_MODELS_DECODER_H_
#define RECURVE_ENGINE_MODELS_DECODER_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/models/model_definition.h"
#include "engine/program/executor.h"
#include "engine/program/model_runner.h"

namespace recurve {

// A loaded model: its facts, and the executor that runs its program. Runs on
// any device.
class Decoder : public ModelRunner {
 public:
  // Has `executor`, made for Emit(model), load the weights, and allocate
  // `num_pages` pages, `num_slots` slots and up to `swap_bytes` of host memory
  // to save sequences in. If `swap_required`, it is an error if that is too
  // little for one sequence, or more than the host has; else none is used.
  // `prefix_cache_bytes` more are for snapshots of prompts; if the device
  // cannot have them, there are none.
  // `model`'s views are not used afterwards.
  static absl::StatusOr<std::unique_ptr<Decoder>> Load(
      const ModelDefinition& model, std::unique_ptr<Executor> executor,
      int32_t num_pages, int32_t num_slots, int64_t swap_bytes = 0,
      bool swap_required = true, int64_t prefix_cache_bytes = 0);

  // Runs the executor's warm-up steps, before there is a sequence. An error
  // means that the device failed.
  absl::Status WarmUp();

  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override { return cache_spec_; }
  CacheStorage& storage() override { return *executor_; }
  absl::Status Run(const StepBatch& batch, StepOutput* output) override;
  bool runs_ahead() const override { return executor_->runs_ahead(); }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status Wait(StepOutput* output) override {
    return executor_->End(output);
  }

 private:
  explicit Decoder(std::unique_ptr<Executor> executor)
      : executor_(std::move(executor)) {}

  const std::unique_ptr<Executor> executor_;
  ModelInfo info_;
  CacheSpec cache_spec_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_DECODER_H_
