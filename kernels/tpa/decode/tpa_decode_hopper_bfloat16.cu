// TPA decode on sm_90a from bfloat16 pages: shapes, floor and technique are in
// tpa_decode_hopper.cuh.
#include "kernels/tpa/decode/tpa_decode_hopper.cuh"

namespace recurve {

int CountTpaClusters(int shared_memory) {
  const auto kernel = tpa_decode_clusters<__nv_bfloat16, 2, true>;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kTpaClusterBlocks);
  config.blockDim = dim3(kTpaMaxThreads);
  config.dynamicSmemBytes = shared_memory;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kTpaClusterBlocks, 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_memory);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error == cudaSuccess) return clusters;
  // A partition of a GPU may have no room for one: other plans remain.
  (void)cudaGetLastError();
  return 0;
}

cudaError_t LaunchTpaHopperBFloat16(const TpaDecodeArgs& args,
                                    const TpaDecodePlan& plan,
                                    cudaStream_t stream) {
  return LaunchVariant<__nv_bfloat16>(args, plan, stream);
}

}  // namespace recurve
