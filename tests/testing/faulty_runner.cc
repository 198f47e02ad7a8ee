#include "tests/testing/faulty_runner.h"

#include "base/status_macros.h"

namespace recurve {

absl::Status FaultyRunner::Run(const StepBatch& batch, StepOutput* output) {
  BeforeRun before;
  {
    MutexLock lock(&mu_);
    before = before_;
  }
  if (before) RECURVE_RETURN_IF_ERROR(before(batch, real_->storage()));
  return real_->Run(batch, output);
}

void FaultyRunner::SetBeforeRun(BeforeRun before) {
  MutexLock lock(&mu_);
  before_ = std::move(before);
}

}  // namespace recurve
