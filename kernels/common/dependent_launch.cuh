// Programmatic dependent launch: a kernel may start while the one before it in
// the stream still runs, and waits for it before it touches what that one
// writes. It hides the gap between two kernels, and what can be read before.
#ifndef RECURVE_KERNELS_COMMON_DEPENDENT_LAUNCH_CUH_
#define RECURVE_KERNELS_COMMON_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <utility>

#include "kernels/common/async_copy.cuh"

namespace recurve {

// Launches `kernel` so. REQUIRES: every thread of it calls WaitForPrevious()
// before it reads what any earlier kernel writes, and before it writes. Then
// "the kernel before is done" holds for all before that one, too.
//
// On devices other than of compute capability 9.0, for which there is other
// code, it is a plain launch.
template <typename... Params, typename... Args>
cudaError_t LaunchDependent(void (*kernel)(Params...), dim3 grid, int threads,
                            size_t shared_bytes, cudaStream_t stream,
                            Args&&... args) {
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                   device);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = major == 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_DEPENDENT_LAUNCH_CUH_
