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
  return CallAfter(real_->Run(batch, output), output);
}

absl::Status FaultyRunner::CallAfter(const absl::Status& status,
                                     StepOutput* output) {
  std::function<void(StepOutput*)> after;
  {
    MutexLock lock(&mu_);
    after = after_;
  }
  if (status.ok() && after) after(output);
  return status;
}

absl::Status FaultyRunner::Wait(StepOutput* output) {
  return CallAfter(real_->Wait(output), output);
}

absl::Status FaultyRunner::Launch(const StepBatch& batch) {
  RECURVE_RETURN_IF_ERROR(CallBefore(batch));
  return real_->Launch(batch);
}

void FaultyRunner::SetBeforeRun(BeforeRun before) {
  MutexLock lock(&mu_);
  before_ = std::move(before);
}

void FaultyRunner::SetAfterRun(std::function<void(StepOutput*)> after) {
  MutexLock lock(&mu_);
  after_ = std::move(after);
}

}  // namespace recurve
