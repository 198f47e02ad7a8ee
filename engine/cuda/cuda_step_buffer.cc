#include "engine/cuda/cuda_step_buffer.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/rows/rows_cuda.h"

namespace recurve {
namespace {

// Copies consist of whole pieces.
int64_t Whole(int64_t bytes) {
  return (bytes + kCopyMultiple - 1) / kCopyMultiple * kCopyMultiple;
}

}  // namespace

CudaStepBuffer::~CudaStepBuffer() {
  if (bus_ != nullptr) {
    (void)cudaStreamSynchronize(bus_);
    cudaStreamDestroy(bus_);
  }
  for (cudaEvent_t event : {has_arrived_, was_moved_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

absl::Status CudaStepBuffer::Allocate(int64_t bytes) {
  for (const auto& [memory, kind] :
       {std::pair(&hosts_[0], CudaMemory::Kind::kHost),
        std::pair(&hosts_[1], CudaMemory::Kind::kHost),
        std::pair(&arrived_, CudaMemory::Kind::kDevice),
        std::pair(&device_, CudaMemory::Kind::kDevice)}) {
    RECURVE_ASSIGN_OR_RETURN(
        *memory, CudaMemory::Allocate(
                     kind, Whole(bytes),
                     "a step's numbers; lower --max-num-seqs, --max-model-len "
                     "or --max-num-batched-tokens"));
  }
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&bus_, cudaStreamNonBlocking), "stream"));
  for (cudaEvent_t* event : {&has_arrived_, &was_moved_}) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event"));
  }
  return absl::OkStatus();
}

absl::Status CudaStepBuffer::Copy(cudaStream_t stream) const {
  constexpr char kWhat[] = "copying a step";
  // The data that arrived last is moved into place when its step begins.
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamWaitEvent(bus_, was_moved_, 0), kWhat));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(arrived_.data(), hosts_[turn_].data(), used_,
                                 cudaMemcpyHostToDevice, bus_),
                 kWhat));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(has_arrived_, bus_), kWhat));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamWaitEvent(stream, has_arrived_, 0), kWhat));
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      LaunchCopy({arrived_.data(), device_.data(), Whole(used_)}, stream),
      kWhat));
  return CudaStatus(cudaEventRecord(was_moved_, stream), kWhat);
}

}  // namespace recurve
