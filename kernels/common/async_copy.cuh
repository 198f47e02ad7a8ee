// Named barriers, mbarriers and asynchronous copies into shared memory. Device
// code only. Hopper's instructions fall back to Ampere's.
#ifndef RECURVE_KERNELS_COMMON_ASYNC_COPY_CUH_
#define RECURVE_KERNELS_COMMON_ASYNC_COPY_CUH_

#include <cstdint>

namespace recurve {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Barrier among `threads` threads (whole warps) of the block; id 0 is that of
// __syncthreads. The instruction requires converged warps.
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Lanes of a warp that arrive at a barrier for it, after __syncwarp. One is
// enough; compute-sanitizer's racecheck follows only each thread's own
// accesses, so in a build for it all arrive.
#ifdef RECURVE_RACECHECK
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif

// Counts the calling threads as arrived and does not wait; their writes are
// visible to those that wait. compute-sanitizer's racecheck does not follow
// this: a build for it waits here, too.
__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
#ifdef RECURVE_RACECHECK
  NamedBarrier(id, threads);
#else
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// NamedBarrier; returns whether `value` is true in any of the threads.
__device__ __forceinline__ bool NamedBarrierAny(int id, int threads,
                                                bool value) {
  uint32_t any;
  __syncwarp();
  asm volatile(
      "{ .reg .pred p, q;"
      "  setp.ne.u32 p, %1, 0;"
      "  bar.red.or.pred q, %2, %3, p;"
      "  selp.u32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(value)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

// ---- mbarrier: 8 bytes of shared memory, given by address ----

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier),
               "r"(arrivals)
               : "memory");
}
// After the last BarrierInit, before __syncthreads.
__device__ __forceinline__ void BarrierInitFence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
          barrier)
      : "memory");
}
// Counts as `count` arrivals.
__device__ __forceinline__ void BarrierArrive(uint32_t barrier,
                                              uint32_t count) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0], %1; }" ::"r"(
          barrier),
      "r"(count)
      : "memory");
}
// Whether the phase of this parity has completed; does not wait.
__device__ __forceinline__ bool BarrierDone(uint32_t barrier, uint32_t phase) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p;"
      "  mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
      "  selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done != 0;
}
// The same; on Hopper the thread may sleep until it has.
__device__ __forceinline__ bool BarrierTest(uint32_t barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  uint32_t done;
  asm volatile(
      "{ .reg .pred p;"
      "  mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
      "  selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done != 0;
#else
  return BarrierDone(barrier, phase);
#endif
}
// Waits until the phase of this parity has completed.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t phase) {
  while (!BarrierTest(barrier, phase)) {
  }
}

// ---- one lane of a warp ----

// True in one lane of a converged warp, which the compiler knows to be one: a
// bulk copy or tensor box under `lane == 0` compiles to a loop over lanes.
__device__ __forceinline__ bool ElectLane() {
#if __CUDA_ARCH__ >= 900
  uint32_t elected;
  asm volatile(
      "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
      : "=r"(elected));
  return elected != 0;
#else
  return threadIdx.x % 32 == 0;
#endif
}

// x, equal in all lanes of a converged warp; branches and addresses that depend
// on the result are known to be uniform.
__device__ __forceinline__ int Uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

// ---- copies, global to shared ----

// Arrives once, and adds `bytes` of bulk copies to what the phase waits for.
__device__ __forceinline__ void BarrierExpect(uint32_t barrier,
                                              uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b64 state;"
      "  mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
          barrier),
      "r"(bytes)
      : "memory");
#endif
}
// One thread copies `bytes`, a multiple of 16 at 16-byte boundaries; completion
// counts on the barrier. Hopper only.
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from,
                                         uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}
// The way back, as a group of the thread's; what was written to shared memory
// needs a BulkCopyFence() by the thread that wrote it, and a barrier.
__device__ __forceinline__ void BulkStore(void* to, uint32_t from,
                                          uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
#endif
}
// Waits until this thread's BulkStores have read shared memory.
__device__ __forceinline__ void BulkStoreReadWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
// Waits until they have written.
__device__ __forceinline__ void BulkStoreWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
// Prefetches `bytes`, a multiple of 16 at 16-byte boundaries, into L2. Hopper
// only.
__device__ __forceinline__ void PrefetchL2(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
               "r"(bytes));
#endif
}
// Orders this thread's ordinary accesses to shared memory before later bulk
// copies over them. (Copies overtake reads that nothing waits for, even across
// an arrival at a barrier.)
__device__ __forceinline__ void BulkCopyFence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
// Waits for this thread's CopyAsync16.
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Arrives when this thread's CopyAsync16 so far are done, as one of the
// barrier's arrivals.
__device__ __forceinline__ void BarrierArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier)
               : "memory");
}

// ---- registers, moved between warpgroups; only on sm_90a. Every warp of the
// warpgroup calls it ----

template <int kRegisters>
__device__ __forceinline__ void ReleaseRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void ClaimRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// ---- programmatic dependent launch; no effect before Hopper ----

// The next kernel in the stream may start its prologue.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the previous kernel is done and its writes are visible.
__device__ __forceinline__ void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_ASYNC_COPY_CUH_
