// Copies of three-dimensional boxes to shared memory by the tensor copy engine,
// with maps of tensor_map.h. Device code only; no effect before Hopper.
#ifndef RECURVE_KERNELS_COMMON_TENSOR_COPY_CUH_
#define RECURVE_KERNELS_COMMON_TENSOR_COPY_CUH_

#include <cuda.h>

#include <cstdint>

namespace recurve {

// One thread copies the box that begins at (x, y, z); completion counts on the
// barrier.
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap& map,
                                        int x, int y, int z, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
#endif
}
// The same to one address in all blocks of `mask` of the cluster, counted on
// the barrier of each.
__device__ __forceinline__ void CopyBoxToAll(uint32_t to,
                                             const CUtensorMap& map, int x,
                                             int y, int z, uint32_t barrier,
                                             uint32_t mask) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z),
      "h"(static_cast<uint16_t>(mask))
      : "memory");
#endif
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_TENSOR_COPY_CUH_
