// Commit groups of asynchronous copies to shared memory (cp.async), waited for
// in the order of commits.
//
// No group of a whole warp may be empty. With empty groups after its copies, a
// warp passed cp.async.wait_group before they had arrived: on an H200, some two
// in a million, while another kernel kept memory busy
// (bench/results/2026-11-23-h200-empty-groups). So a warp that copies nothing
// commits nothing, and the waiting warp passes the count of later groups.
#ifndef RECURVE_KERNELS_COMMON_COPY_GROUPS_CUH_
#define RECURVE_KERNELS_COMMON_COPY_GROUPS_CUH_

namespace recurve {

// Makes this thread's copies since the last commit a group. At least one thread
// of its warp has copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all of this thread's groups but the last kBehind.
template <int kBehind>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBehind) : "memory");
}

// Waits for all groups but the last `behind` >= 0, or for more: the instruction
// takes a constant, and at most kMost are left out. While a ring buffer is
// full, kMost groups are behind; fewer near the end.
template <int kMost>
__device__ __forceinline__ void WaitForAllBut(int behind) {
  if constexpr (kMost == 0) {
    WaitForCopies<0>();
  } else if (behind >= kMost) {
    WaitForCopies<kMost>();
  } else {
    WaitForAllBut<(kMost > 4 ? kMost / 2 : kMost - 1)>(behind);
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_COPY_GROUPS_CUH_
