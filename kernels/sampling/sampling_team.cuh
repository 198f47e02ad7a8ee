// The threads that draw a sample, and how they tell each other what they found.
// Device code only.
#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_TEAM_CUH_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_TEAM_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_plan.h"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace sampling {

inline constexpr unsigned kAll = 0xffffffffu;

// A block alone has 1024 threads. Those of a cluster have half as many: two of
// them fit on a multiprocessor, and each has less to do.
template <bool kCluster>
inline constexpr int kThreads = kCluster ? 512 : 1024;
// Groups of a block, neighbouring threads of one warp, that tell the others
// something.
inline constexpr int kGroups = 32;
template <bool kCluster>
inline constexpr int kLanes = kThreads<kCluster> / kGroups;  // of a group

inline constexpr int kBins = 2048;
inline constexpr int kBinBits = 11;
inline constexpr int kGroupBins = kBins / kGroups;

// Tokens among which FindCut ranks each, and those of them that a block may
// have: in a cluster, what it can send at once beside their number.
inline constexpr int kCandidates = 256;
template <bool kCluster>
inline constexpr int kCollected = kCluster ? 2 * (kGroups - 1) : kCandidates;

struct alignas(16) Pair {
  uint64_t a;
  uint64_t b;
};

// Shared memory of a block.
template <bool kCluster>
struct Memory {
  Pair pairs[2][kCluster ? kSampleMostBlocks : 1][kGroups];  // Team's
  uint64_t barriers[2];
  double exp_table[kSampleExpEntries];
  uint32_t low[kBins];                       // a bin's sum, lower half
  uint32_t high[kBins];                      // upper half
  Pair candidates[kCandidates];              // {key, amount}
  uint64_t collected[kCollected<kCluster>];  // keys
  int32_t num_collected;  // if more than fit: that, and not how many
  int32_t num_top;
  uint64_t top[kSampleMaxTop];
  uint64_t cut;
  uint64_t warp_sums[kThreads<kCluster> / 32];
  int32_t token;
};

// The block's. By name, and not by a pointer that functions pass on, so that it
// is known to be shared memory also where they are not inlined.
template <bool kCluster>
__device__ __forceinline__ Memory<kCluster>& BlockMemory() {
  __shared__ Memory<kCluster> memory;
  return memory;
}

struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Max {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a > b ? a : b;
  }
};
struct Min {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a < b ? a : b;
  }
};

// `value` of kWidth neighbouring lanes together, in each of them. By whole
// warps.
template <int kWidth, typename Op>
__device__ __forceinline__ uint64_t ReduceLanes(uint64_t value, Op op) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}

// The sum of `value` over this lane and those before it.
__device__ __forceinline__ uint64_t ScanLanes(uint64_t value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t before = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += before;
  }
  return value;
}

// The lane with which the running sum of `value` over lanes reaches `target`,
// and the sum before it. REQUIRES: it does reach it.
struct Place {
  int lane;
  uint64_t before;
};
__device__ __forceinline__ Place FindLane(uint64_t value, uint64_t target) {
  const uint64_t running = ScanLanes(value);
  const unsigned reached = __ballot_sync(kAll, running >= target);
  // 31 in place of none, so that numbers out of their ranges do no harm.
  const int lane = reached == 0 ? 31 : __ffs(static_cast<int>(reached)) - 1;
  return {lane, __shfl_sync(kAll, running - value, lane)};
}

// All threads of a sample: of one block, or of a cluster of `blocks`. All of
// them make the same calls.
//
// What they tell each other are pairs, one of each group, to all blocks. In a
// cluster they are sent into every block's memory, where a barrier counts
// their bytes: a barrier of the cluster would wait for all stores and empty the
// first-level cache.
//
// Exchange n uses buffer and barrier n % 2. Why none comes in another's way: a
// group sends its pair of exchange n + 1 when its warp has got all pairs of n,
// and is done with them. So when any warp has got those of n + 1, every warp of
// every block is done with n, and
//  - what it sends for n + 2 replaces only pairs that nobody reads any more;
//  - these bytes, and the arrival for n + 2, come to a barrier whose phase of n
//    is over, as its own warps have seen;
//  - a warp that waits for n has sent nothing of n + 1, so that no phase can
//    end behind the one it waits for.
// And all threads of a block wait for every exchange: nothing is sent to a
// block that has ended.
template <bool kCluster>
class Team {
 public:
  // By all threads, as the block begins: nothing was sent before, or read.
  // Returns when the blocks of the cluster have begun, too.
  __device__ __forceinline__ explicit Team(int blocks)
      : blocks_(kCluster ? blocks : 1) {
    if constexpr (kCluster) {
      if (threadIdx.x == 0) {
        BarrierInit(Barrier(0), 1);
        BarrierInit(Barrier(1), 1);
        BarrierInitFence();
      }
      cluster::Begun();
      cluster::AwaitBegun();
    }
  }
  // By all threads, at the end.
  __device__ __forceinline__ void End() const {
    if constexpr (kCluster) cluster::Meet();
  }

  __device__ __forceinline__ int blocks() const {
    return kCluster ? blocks_ : 1;
  }
  __device__ __forceinline__ int rank() const {
    return kCluster ? static_cast<int>(blockIdx.x) % blocks_ : 0;
  }
  __device__ __forceinline__ int sample() const {
    return static_cast<int>(blockIdx.x) / blocks();
  }
  __device__ __forceinline__ static int Group() {
    return static_cast<int>(threadIdx.x) / kLanes<kCluster>;
  }
  __device__ __forceinline__ static int Lane() {
    return static_cast<int>(threadIdx.x) % kLanes<kCluster>;
  }

  using Pairs = const Pair (*)[kGroups];  // [blocks, groups]

  // All pairs, in every thread. `mine` is the group's, the same in its threads.
  // They can be read until the next call. It orders nothing else in shared
  // memory.
  __device__ __forceinline__ Pairs Exchange(const Pair& mine) {
    Memory<kCluster>& s = BlockMemory<kCluster>();
    const int buffer = turn_ % 2;
    if constexpr (kCluster) {
      const uint32_t barrier = Barrier(buffer);
      if (threadIdx.x == 0) {
        BarrierExpect(barrier, static_cast<uint32_t>(sizeof(Pair)) * kGroups *
                                   static_cast<uint32_t>(blocks_));
      }
      __syncwarp();  // it is done with the last pairs
      if (Lane() < blocks_) {
        cluster::SendPair(SharedAddress(&s.pairs[buffer][rank()][Group()]),
                          barrier, Lane(), mine.a, mine.b);
      }
      BarrierWait(barrier, turn_ / 2 % 2);
    } else {
      if (Lane() == 0) s.pairs[buffer][0][Group()] = mine;
      __syncthreads();
    }
    ++turn_;
    return s.pairs[buffer];
  }

  // Of all blocks' pairs of group `threadIdx.x % 32`, each half together.
  template <typename OpA, typename OpB>
  __device__ __forceinline__ Pair OfBlocks(Pairs pairs, OpA a, OpB b) const {
    const int lane = threadIdx.x % 32;
    Pair all = pairs[0][lane];
    if constexpr (kCluster) {
#pragma unroll
      for (int i = 1; i < kSampleMostBlocks; ++i) {
        if (i >= blocks_) continue;
        const Pair more = pairs[i][lane];
        all = {a(all.a, more.a), b(all.b, more.b)};
      }
    }
    return all;
  }

  // {the largest of all threads' `a`, the smallest of their `b`}.
  __device__ __forceinline__ Pair Extremes(uint64_t a, uint64_t b) {
    a = ReduceLanes<kLanes<kCluster>>(a, Max());
    b = ReduceLanes<kLanes<kCluster>>(b, Min());
    const Pair all = OfBlocks(Exchange({a, b}), Max(), Min());
    return {ReduceLanes<32>(all.a, Max()), ReduceLanes<32>(all.b, Min())};
  }

 private:
  __device__ __forceinline__ static uint32_t Barrier(int buffer) {
    return SharedAddress(&BlockMemory<kCluster>().barriers[buffer]);
  }

  const int blocks_;
  uint32_t turn_ = 0;  // exchanges so far
};

}  // namespace sampling
}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_TEAM_CUH_
