#include "tests/testing/faulty_runner.h"

#include "base/status_macros.h"

namespace recurve {

absl::Status FaultyRunner::CallBefore(const StepBatch& batch) {
  BeforeRun before;
  {
    MutexLock lock(&mu_);
    before = before_;
  }
  return before ? before(batch, real_->storage()) : absl::OkStatus();
}

absl::Status FaultyRunner::Run(const StepBatch& batch, StepOutput* output) {
  RECURVE_RETURN_IF_ERROR(CallBefore(batch));
  return real_->Run(batch, output);
}

absl::Status FaultyRunner::Launch(const StepBatch& batch) {
  RECURVE_RETURN_IF_ERROR(CallBefore(batch));
  return real_->Launch(batch);
}

void FaultyRunner::SetBeforeRun(BeforeRun before) {
  MutexLock lock(&mu_);
  before_ = std::move(before);
}

}  // namespace recurve
