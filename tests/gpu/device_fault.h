#ifndef RECURVE_TESTS_GPU_DEVICE_FAULT_H_
#define RECURVE_TESTS_GPU_DEVICE_FAULT_H_

#include <cuda_runtime_api.h>

namespace recurve {

// Has the current device write where it may not: an error that stays, for all
// that the process does with the device from then on. Does not wait.
cudaError_t LaunchDeviceFault();

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_DEVICE_FAULT_H_
