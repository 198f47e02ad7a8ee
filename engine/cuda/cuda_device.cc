#include "engine/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/cuda/cuda_memory.h"

namespace recurve {

absl::StatusOr<CudaDevice> FindCudaDevice() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count);
      error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return absl::UnavailableError(absl::StrCat(
        "no usable GPU: ",
        error == cudaSuccess ? "there is none" : cudaGetErrorString(error),
        error == cudaErrorInsufficientDriver ? " (no driver, or one too old)"
                                             : ""));
  }
  int id = 0;
  cudaDeviceProp properties;
  RECURVE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&id), "device"));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, id), "device"));
  CudaDevice device;
  device.name = properties.name;
  if (properties.major < 8) {
    return absl::UnavailableError(absl::StrCat(
        "no usable GPU: ", device.name, " has compute capability ",
        properties.major, ".", properties.minor, "; 8.0 or higher is needed"));
  }
  size_t free = 0;
  size_t total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total);
      error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("no usable GPU: ", cudaGetErrorString(error)));
  }
  device.integrated = properties.integrated != 0;
  device.hopper = properties.major == 9;
  device.multiprocessors = properties.multiProcessorCount;
  device.compute_capability =
      absl::StrCat(properties.major, ".", properties.minor);
  device.free_bytes = static_cast<int64_t>(free);
  device.total_bytes = static_cast<int64_t>(total);
  return device;
}

}  // namespace recurve
