#ifndef RECURVE_TESTS_TESTING_FAULTY_RUNNER_H_
#define RECURVE_TESTS_TESTING_FAULTY_RUNNER_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "engine/program/model_runner.h"

namespace recurve {

// Decorates a real model, and injects faults.
class FaultyRunner : public ModelRunner {
 public:
  // Called before each step; an error is what the device reports.
  using BeforeRun =
      std::function<absl::Status(const StepBatch&, CacheStorage&)>;

  explicit FaultyRunner(std::unique_ptr<ModelRunner> real)
      : real_(std::move(real)) {}

  const ModelInfo& info() const override { return real_->info(); }
  CacheSpec cache_spec() const override { return real_->cache_spec(); }
  CacheStorage& storage() override { return real_->storage(); }
  absl::Status Run(const StepBatch& batch, StepOutput* output) override;
  bool runs_ahead() const override { return real_->runs_ahead(); }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status Wait(StepOutput* output) override;

  void SetBeforeRun(BeforeRun before);
  // Called with the output of each successful step.
  void SetAfterRun(std::function<void(StepOutput*)> after);

 private:
  absl::Status CallBefore(const StepBatch& batch);
  absl::Status CallAfter(const absl::Status& status, StepOutput* output);

  const std::unique_ptr<ModelRunner> real_;
  Mutex mu_;
  BeforeRun before_ ABSL_GUARDED_BY(mu_);
  std::function<void(StepOutput*)> after_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_FAULTY_RUNNER_H_
