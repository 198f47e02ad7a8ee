#ifndef RECURVE_ENGINE_CUDA_CUDA_STEP_BUFFER_H_
#define RECURVE_ENGINE_CUDA_CUDA_STEP_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "base/check.h"
#include "engine/cuda/cuda_memory.h"

namespace recurve {

// Everything that changes from step to step, written on the host. Equal
// sequences of Add calls give equal addresses on the device, so that a captured
// graph finds the next step's numbers where it looks.
//
// Two steps may be under way. What one is made of crosses the bus while the one
// before it runs, on a stream of its own, to memory beside that which the
// running step reads; and is moved there when that has ended, by one small
// kernel. So the device does not wait for the bus between two steps, and the
// bus for no more than a step's begin.
//
// Not thread-safe.
class CudaStepBuffer {
 public:
  CudaStepBuffer() = default;
  ~CudaStepBuffer();
  CudaStepBuffer(const CudaStepBuffer&) = delete;
  CudaStepBuffer& operator=(const CudaStepBuffer&) = delete;

  // What an Add of `count` values takes at most, at the usual alignment.
  // Whoever adds to a step counts so beforehand: CudaBackend::StepBytes and
  // what that adds up.
  template <typename T>
  static constexpr int64_t Room(int64_t count) {
    return count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1;
  }

  // Device memory that Allocate takes, about.
  static int64_t DeviceBytes(int64_t bytes) { return 2 * bytes; }
  // ResourceExhausted, naming what to lower.
  absl::Status Allocate(int64_t bytes);

  // Begins a step. The last but one must be done.
  void Clear() {
    used_ = 0;
    turn_ = 1 - turn_;
  }

  // Room for `count` values: where to write them, and where the device finds
  // them, at a multiple of `alignment` bytes: a power of two from 16 to 256.
  // REQUIRES: there is room.
  template <typename T>
  std::remove_const_t<T>* Add(int64_t count, T** on_device,
                              int64_t alignment = kAlignment) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    const int64_t at = used_;
    used_ += count * static_cast<int64_t>(sizeof(T));
    RECURVE_CHECK(used_ <= device_.bytes());
    *on_device = reinterpret_cast<T*>(device_.data() + at);
    return reinterpret_cast<std::remove_const_t<T>*>(hosts_[turn_].data() + at);
  }

  // Brings what was written to the device, for what `stream` does from here on;
  // always the same stream.
  absl::Status Copy(cudaStream_t stream) const;

 private:
  static constexpr int64_t kAlignment = 16;

  int turn_ = 0;
  int64_t used_ = 0;
  CudaMemory hosts_[2];
  CudaMemory arrived_;  // on the device
  CudaMemory device_;
  cudaStream_t bus_ = nullptr;
  cudaEvent_t has_arrived_ = nullptr;
  cudaEvent_t was_moved_ = nullptr;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_STEP_BUFFER_H_
