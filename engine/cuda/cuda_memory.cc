#include "engine/cuda/cuda_memory.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr char kNoDeviceMemory[] = "no device memory";

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

CudaMemory::~CudaMemory() {
  if (data_ == nullptr) return;
  if (kind_ == Kind::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

bool CudaMemory::LacksDevice(const absl::Status& status) {
  return absl::IsResourceExhausted(status) &&
         absl::StartsWith(status.message(), kNoDeviceMemory);
}

absl::StatusOr<CudaMemory> CudaMemory::Allocate(Kind kind, int64_t bytes,
                                                absl::string_view what) {
  CudaMemory memory;
  memory.kind_ = kind;
  if (bytes == 0) return memory;
  const auto size = static_cast<size_t>(bytes);
  const cudaError_t error = kind == Kind::kDevice
                                ? cudaMalloc(&memory.data_, size)
                                : cudaMallocHost(&memory.data_, size);
  if (error != cudaSuccess) {
    memory.data_ = nullptr;
    (void)cudaGetLastError();  // this error is not sticky
    if (error != cudaErrorMemoryAllocation) return CudaStatus(error, what);
    return absl::ResourceExhaustedError(absl::StrCat(
        kind == Kind::kDevice ? kNoDeviceMemory : "no page-locked host memory",
        " for ", bytes, " bytes of ", what));
  }
  memory.bytes_ = bytes;
  if (kind == Kind::kDevice) {
    // Other streams are not synchronised with this one.
    RECURVE_RETURN_IF_ERROR(
        CudaStatus(cudaMemset(memory.data_, 0, size), what));
    RECURVE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(cudaStreamLegacy), what));
  }
  return memory;
}

}  // namespace recurve
