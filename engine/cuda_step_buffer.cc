#include "engine/cuda_step_buffer.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/rows/rows_cuda.h"

namespace recurve {

CudaStepBuffer::~CudaStepBuffer() {
  if (bus_ != nullptr) {
    (void)cudaStreamSynchronize(bus_);
    cudaStreamDestroy(bus_);
  }
  for (cudaEvent_t event : arrivals_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

absl::Status CudaStepBuffer::Allocate(int64_t bytes) {
  const int64_t whole = (bytes + kCopyMultiple - 1) / kCopyMultiple *
                        kCopyMultiple;  // copies are of whole pieces
  for (const auto& [memory, kind] :
       {std::pair(&hosts_[0], CudaMemory::Kind::kHost),
        std::pair(&hosts_[1], CudaMemory::Kind::kHost),
        std::pair(&arrived_[0], CudaMemory::Kind::kDevice),
        std::pair(&arrived_[1], CudaMemory::Kind::kDevice),
        std::pair(&device_, CudaMemory::Kind::kDevice)}) {
    RECURVE_ASSIGN_OR_RETURN(*memory,
                             CudaMemory::Allocate(kind, whole, "a step"));
  }
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&bus_, cudaStreamNonBlocking), "stream"));
  for (cudaEvent_t& event : arrivals_) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"));
  }
  return absl::OkStatus();
}

absl::Status CudaStepBuffer::Copy(cudaStream_t stream) const {
  constexpr char kWhat[] = "copying a step";
  // The step that read from there last is done, says Clear.
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(arrived_[turn_].data(), hosts_[turn_].data(),
                                 used_, cudaMemcpyHostToDevice, bus_),
                 kWhat));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(arrivals_[turn_], bus_), kWhat));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamWaitEvent(stream, arrivals_[turn_], 0), kWhat));
  return CudaStatus(
      LaunchCopy({arrived_[turn_].data(), device_.data(),
                  (used_ + kCopyMultiple - 1) / kCopyMultiple * kCopyMultiple},
                 stream),
      kWhat);
}

}  // namespace recurve
