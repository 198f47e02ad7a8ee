// Access to the shared memory of other blocks of a cluster. Device code only;
// no effect before Hopper.
#ifndef RECURVE_KERNELS_COMMON_CLUSTER_CUH_
#define RECURVE_KERNELS_COMMON_CLUSTER_CUH_

#include <cstdint>

namespace recurve {
namespace cluster {

__device__ __forceinline__ int ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ void ClusterBarrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}
// The two halves of a relaxed cluster barrier. It orders only reads whose
// values have been used, and mbarrier words after BarrierInitFence: for the end
// of a block whose memory others read, and for the start of blocks.
__device__ __forceinline__ void Arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void Wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// The same at the start of a block, for warps that may not have converged, as
// the instructions require. Begun: this block's mbarriers are initialised;
// AwaitBegun: those of all blocks are.
__device__ __forceinline__ void Begun() {
  __syncwarp();
  Arrive();
}
__device__ __forceinline__ void AwaitBegun() {
  __syncwarp();
  Wait();
}
// All threads of the cluster meet, without waiting for what they wrote: at the
// start after BarrierInitFence, which orders the mbarrier words, or at the end
// when nothing sent is in flight.
__device__ __forceinline__ void Meet() {
  __syncwarp();  // the instructions require converged warps
  Arrive();
  Wait();
}
// The two halves of ClusterBarrier, for work in between that needs no order.
// Global stores before Publish are waited for: issue them after it.
__device__ __forceinline__ void Publish() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void AwaitPublished() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Address in block `rank` of the cluster of this block's shared `address`.
__device__ __forceinline__ uint32_t InBlock(uint32_t address, int rank) {
  uint32_t mapped = 0;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(mapped)
      : "r"(address), "r"(rank));
#endif
  return mapped;
}
// A float to another block, whose address InBlock gave; Publish orders it.
__device__ __forceinline__ void StoreOne(uint32_t to, float x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
#endif
}
// A float to another block, counted on a barrier there.
__device__ __forceinline__ void SendOne(uint32_t to, uint32_t barrier,
                                        float x) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 "
      "[%0], %1, [%2];" ::"r"(to),
      "f"(x), "r"(barrier)
      : "memory");
#endif
}
// Two floats to another block, counted on a barrier there.
__device__ __forceinline__ void SendTwo(uint32_t to, uint32_t barrier, float a,
                                        float b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
      "[%0], {%1, %2}, [%3];" ::"r"(to),
      "f"(a), "f"(b), "r"(barrier)
      : "memory");
#endif
}
// Four floats to another block, counted on a barrier there.
__device__ __forceinline__ void SendFour(uint32_t to, uint32_t barrier, float a,
                                         float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
#endif
}
// The same to `address` in block `rank`, counted on `barrier` there; both are
// addresses of this block's shared memory. (A cluster barrier would wait for
// all stores, to global memory too, and empty the L1 cache.)
__device__ __forceinline__ void SendFour(uint32_t address, uint32_t barrier,
                                         int rank, const float4& v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 there, counted;"
      "  mapa.shared::cluster.u32 there, %0, %2;"
      "  mapa.shared::cluster.u32 counted, %1, %2;"
      "  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[there], {%3, %4, %5, %6}, [counted]; }" ::"r"(address),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
#endif
}
// Two words of 8 bytes, in the same way.
__device__ __forceinline__ void SendPair(uint32_t address, uint32_t barrier,
                                         int rank, uint64_t a, uint64_t b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 there, counted;"
      "  mapa.shared::cluster.u32 there, %0, %2;"
      "  mapa.shared::cluster.u32 counted, %1, %2;"
      "  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 "
      "[there], {%3, %4}, [counted]; }" ::"r"(address),
      "r"(barrier), "r"(rank), "l"(a), "l"(b)
      : "memory");
#endif
}
// Block scope: a release to the cluster would wait for all of the warp's stores
// to global memory. This orders reads of shared memory whose values have been
// used.
__device__ __forceinline__ void ArriveInCluster(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
#endif
}

// Sixteen bytes from another block.
__device__ __forceinline__ void ReadFour(uint32_t from, float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(from));
#endif
}

}  // namespace cluster
}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_CLUSTER_CUH_
