#ifndef RECURVE_ENGINE_CUDA_STEP_BUFFER_H_
#define RECURVE_ENGINE_CUDA_STEP_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cuda_memory.h"

namespace recurve {

// Everything that changes from step to step, written on the host and brought to
// the device in one copy. Two steps may be under way: the host's side is there
// twice, and on the device the stream puts a copy behind the step before it.
// Equal sequences of Add calls give equal addresses there, so that a captured
// graph finds the next step's numbers where it looks.
class CudaStepBuffer {
 public:
  absl::Status Allocate(int64_t bytes) {
    for (CudaMemory& host : hosts_) {
      RECURVE_ASSIGN_OR_RETURN(
          host, CudaMemory::Allocate(CudaMemory::Kind::kHost, bytes, "a step"));
    }
    RECURVE_ASSIGN_OR_RETURN(
        device_,
        CudaMemory::Allocate(CudaMemory::Kind::kDevice, bytes, "a step"));
    return absl::OkStatus();
  }

  // Begins a step. The last but one must be done.
  void Clear() {
    used_ = 0;
    turn_ = 1 - turn_;
  }

  // Room for `count` values: where to write them, and where the device finds
  // them.
  template <typename T>
  T* Add(int64_t count, const T** on_device) {
    used_ = (used_ + 15) / 16 * 16;
    T* const to = reinterpret_cast<T*>(hosts_[turn_].data() + used_);
    *on_device = reinterpret_cast<const T*>(device_.data() + used_);
    used_ += count * static_cast<int64_t>(sizeof(T));
    RECURVE_CHECK(used_ <= device_.bytes());
    return to;
  }

  cudaError_t Copy(cudaStream_t stream) const {
    return cudaMemcpyAsync(device_.data(), hosts_[turn_].data(), used_,
                           cudaMemcpyHostToDevice, stream);
  }

 private:
  CudaMemory hosts_[2];
  int turn_ = 0;
  CudaMemory device_;
  int64_t used_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_STEP_BUFFER_H_
