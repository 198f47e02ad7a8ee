#ifndef RECURVE_KERNELS_COMMON_SHARED_MEMORY_H_
#define RECURVE_KERNELS_COMMON_SHARED_MEMORY_H_

#include <cuda_runtime_api.h>

namespace recurve {

// Before a launch: allows `kernel` so many bytes of dynamic shared memory on
// the current device. The driver is asked where it has not been yet, or for
// less: that takes a tenth of what a launch does. (So the device must not be
// reset.) Thread-safe.
cudaError_t AllowSharedMemory(const void* kernel, int bytes);

template <typename... Params>
cudaError_t AllowSharedMemory(void (*kernel)(Params...), int bytes) {
  return AllowSharedMemory(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_SHARED_MEMORY_H_
