#ifndef RECURVE_KERNELS_COMMON_DEVICE_ATTRIBUTE_H_
#define RECURVE_KERNELS_COMMON_DEVICE_ATTRIBUTE_H_

#include <cuda_runtime_api.h>

namespace recurve {

// An attribute of the current device. *value is unchanged on error.
inline cudaError_t DeviceAttribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(value, attribute, device)
                              : error;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_DEVICE_ATTRIBUTE_H_
