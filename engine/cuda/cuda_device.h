#ifndef RECURVE_ENGINE_CUDA_CUDA_DEVICE_H_
#define RECURVE_ENGINE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace recurve {

// What a server on the GPU needs to know of it before it loads a model.
struct CudaDevice {
  std::string name;
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  bool integrated = false;  // its memory is the host's
  bool hopper = false;      // TpaDevice::hopper
};

// The current device. Unavailable, with the reason, where there is none that
// the kernels run on.
absl::StatusOr<CudaDevice> FindCudaDevice();

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_DEVICE_H_
