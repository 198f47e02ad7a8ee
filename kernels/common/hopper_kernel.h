#ifndef RECURVE_KERNELS_COMMON_HOPPER_KERNEL_H_
#define RECURVE_KERNELS_COMMON_HOPPER_KERNEL_H_

#include <cuda_runtime_api.h>

#include "kernels/common/shared_memory.h"

namespace recurve {

// Before a launch of a kernel with code for sm_90a alone: allows it
// `shared_bytes` of dynamic shared memory. cudaErrorNotSupported on other
// devices, for which the kernel is empty.
template <typename Kernel>
cudaError_t PrepareHopperKernel(Kernel kernel, int shared_bytes) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, function);
  if (error != cudaSuccess) return error;
  if (attributes.binaryVersion != 90 || attributes.ptxVersion < 90) {
    return cudaErrorNotSupported;
  }
  return AllowSharedMemory(function, shared_bytes);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_HOPPER_KERNEL_H_
