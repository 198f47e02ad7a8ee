#ifndef RECURVE_BENCH_CUDA_STEP_TIMELINE_H_
#define RECURVE_BENCH_CUDA_STEP_TIMELINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace recurve {

// Times at which the kernels and copies of some work ran on the GPU, by CUPTI
// of the CUDA toolkit: libcupti.so of the CUDA major version of this build,
// in / usr/local/cuda or in the loader's path. Tracing makes each kernel a
// little slower.
class StepTimeline {
 public:
  struct Span {
    std::string name;  // of the kernel, without template arguments; "copy"
    int64_t begin_ns;  // from the first begin
    int64_t end_ns;
    int64_t blocks;
    int64_t threads;  // of a block
  };

  // Before the first use of CUDA. Unavailable without CUPTI.
  static absl::StatusOr<std::unique_ptr<StepTimeline>> Create();
  ~StepTimeline();
  StepTimeline(const StepTimeline&) = delete;
  StepTimeline& operator=(const StepTimeline&) = delete;

  // Work since the last call, by begin. Waits for the device. DataLoss if CUPTI
  // left something out.
  absl::StatusOr<std::vector<Span>> Take();

 private:
  struct Api;
  explicit StepTimeline(std::unique_ptr<Api> api);
  std::unique_ptr<Api> api_;
};

}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_STEP_TIMELINE_H_
