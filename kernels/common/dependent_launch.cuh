// Programmatic dependent launch: a kernel starts while the previous one in the
// stream still runs, and waits for it before it touches what that one writes.
// It hides the gap between kernels, and independent reads.
#ifndef RECURVE_KERNELS_COMMON_DEPENDENT_LAUNCH_CUH_
#define RECURVE_KERNELS_COMMON_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <utility>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_attribute.h"

namespace recurve {

// Launches `kernel` in that way, with `cluster` neighbouring blocks of the
// grid's first dimension as a cluster (1: no clusters). REQUIRES: every thread
// calls WaitForPrevious() before it writes, and before it reads what any
// earlier kernel writes. Then all earlier kernels are done, too.
//
// On devices other than compute capability 9.0, which have other code, a plain
// launch.
template <typename... Params, typename... Args>
cudaError_t LaunchDependentCluster(void (*kernel)(Params...), dim3 grid,
                                   int threads, size_t shared_bytes,
                                   int cluster, cudaStream_t stream,
                                   Args&&... args) {
  int major = 0;
  const cudaError_t error =
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.attrs = attributes;
  config.numAttrs = major != 9 ? 0 : cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

// The same without clusters.
template <typename... Params, typename... Args>
cudaError_t LaunchDependent(void (*kernel)(Params...), dim3 grid, int threads,
                            size_t shared_bytes, cudaStream_t stream,
                            Args&&... args) {
  return LaunchDependentCluster(kernel, grid, threads, shared_bytes, 1, stream,
                                std::forward<Args>(args)...);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_DEPENDENT_LAUNCH_CUH_
