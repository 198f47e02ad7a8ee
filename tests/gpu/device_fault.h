#ifndef RECURVE_TESTS_GPU_DEVICE_FAULT_H_
#define RECURVE_TESTS_GPU_DEVICE_FAULT_H_

#include <cuda_runtime_api.h>

namespace recurve {

// Makes the current device write to an invalid address: a sticky error, for all
// later use of the device by the process. Does not wait.
cudaError_t LaunchDeviceFault();

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_DEVICE_FAULT_H_
