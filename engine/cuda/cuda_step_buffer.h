#ifndef RECURVE_ENGINE_CUDA_CUDA_STEP_BUFFER_H_
#define RECURVE_ENGINE_CUDA_CUDA_STEP_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "base/check.h"
#include "engine/cuda/cuda_memory.h"

namespace recurve {

// All inputs that change from step to step, written on the host. Equal
// sequences of Add calls give equal addresses on the device, so that a captured
// graph finds the next step's inputs at the same addresses.
//
// Two steps may be in flight. A step's inputs are transferred while the
// previous step runs, on a separate stream, to a staging area on the device;
// after the previous step has ended, one small kernel moves them into place. So
// the device does not wait for the bus between two steps.
//
// Not thread-safe.
class CudaStepBuffer {
 public:
  CudaStepBuffer() = default;
  ~CudaStepBuffer();
  CudaStepBuffer(const CudaStepBuffer&) = delete;
  CudaStepBuffer& operator=(const CudaStepBuffer&) = delete;

  // Upper bound on the size of an Add of `count` values at the default
  // alignment. Callers sum it up in advance: CudaExecutor::StepBytes and the
  // functions it calls.
  template <typename T>
  static constexpr int64_t Room(int64_t count) {
    return count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1;
  }

  // Device memory used by Allocate, approximately.
  static int64_t DeviceBytes(int64_t bytes) { return 2 * bytes; }
  // ResourceExhausted, naming the option to lower.
  absl::Status Allocate(int64_t bytes);

  // Begins a step. The step before the last one must have ended.
  void Clear() {
    used_ = 0;
    turn_ = 1 - turn_;
  }

  // Reserves space for `count` values and returns its host address, to write
  // to, and its device address, a multiple of `alignment` bytes: a power of two
  // from 16 to 256.
  // REQUIRES: there is space.
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

  // Transfers the written values to the device for later work on `stream`,
  // which must always be the same stream.
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
