#include "tests/gpu/device_fault.h"

namespace recurve {
namespace {

__global__ void Fault(int* nowhere) { *nowhere = 1; }

}  // namespace

cudaError_t LaunchDeviceFault() {
  Fault<<<1, 1>>>(nullptr);
  return cudaGetLastError();
}

}  // namespace recurve
