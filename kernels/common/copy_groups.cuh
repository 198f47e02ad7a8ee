// Groups of asynchronous copies to shared memory (cp.async), which are waited
// for in the order of their commits.
//
// No group of a whole warp may be empty. With empty groups behind its copies, a
// warp came through cp.async.wait_group before they were there: on an H200,
// some two in a million, where a kernel beside it kept memory busy
// (bench/results/2026-11-23-h200-empty-groups). So a warp that copies nothing
// commits nothing, and who waits says how many groups are behind.
#ifndef RECURVE_KERNELS_COMMON_COPY_GROUPS_CUH_
#define RECURVE_KERNELS_COMMON_COPY_GROUPS_CUH_

namespace recurve {

// This thread's copies since the last commit are a group. Some thread of its
// warp has one.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all of this thread's groups but the last kBehind are there.
template <int kBehind>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBehind) : "memory");
}

// Until all but the last `behind` >= 0 are, or some of those, too: the
// instruction takes a constant, and no more than kMost are left out. While a
// ring is full kMost groups are behind, and fewer at the end of what it
// carries.
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
