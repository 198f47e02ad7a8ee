#ifndef RECURVE_KERNELS_COMMON_SHARED_MEMORY_H_
#define RECURVE_KERNELS_COMMON_SHARED_MEMORY_H_

#include <cuda_runtime_api.h>

namespace recurve {

// Before a launch: allows `kernel` `bytes` of dynamic shared memory on the
// current device. It calls the driver only if fewer were allowed before: a call
// takes a tenth of a launch. (So the device must not be reset.) Thread-safe.
cudaError_t AllowSharedMemory(const void* kernel, int bytes);

template <typename... Params>
cudaError_t AllowSharedMemory(void (*kernel)(Params...), int bytes) {
  return AllowSharedMemory(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_SHARED_MEMORY_H_
