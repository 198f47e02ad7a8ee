#ifndef RECURVE_ENGINE_CUDA_CUDA_DEVICE_H_
#define RECURVE_ENGINE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace recurve {

// Properties of the GPU that a server needs before it loads a model.
struct CudaDevice {
  std::string name;
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  bool integrated = false;  // shares its memory with the host
  bool hopper = false;      // TpaDevice::hopper
  int multiprocessors = 0;
  std::string compute_capability;  // "9.0"
};

// The current device. Unavailable, with the reason, if the kernels run on none.
absl::StatusOr<CudaDevice> FindCudaDevice();

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_DEVICE_H_
