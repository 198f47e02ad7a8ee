// The threads that draw a sample, and how they exchange results. Device code
// only.
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

// A single block has 1024 threads. Blocks of a cluster have half as many: two
// fit on a multiprocessor, and each has less to do.
template <bool kCluster>
inline constexpr int kThreads = kCluster ? 512 : 1024;
// Groups of a block, neighbouring threads of one warp, that exchange results.
inline constexpr int kGroups = 32;
template <bool kCluster>
inline constexpr int kLanes = kThreads<kCluster> / kGroups;  // of a group

inline constexpr int kBins = 2048;
inline constexpr int kBinBits = 11;
inline constexpr int kGroupBins = kBins / kGroups;

// Most tokens that FindCut ranks one by one, and a block's most of them: in a
// cluster, what it can send at once with their count.
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
  int32_t num_collected;                     // more than fit: too many
  int32_t num_top;
  uint64_t top[kSampleMaxTop];
  uint64_t cut;
  uint64_t warp_sums[kThreads<kCluster> / 32];
  int32_t token;
};

// The block's shared memory, by name: through a pointer the compiler would not
// know its address space where functions are not inlined.
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

// Combines `value` of kWidth neighbouring lanes, in each of them. For whole
// warps.
template <int kWidth, typename Op>
__device__ __forceinline__ uint64_t ReduceLanes(uint64_t value, Op op) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}

// Sum of `value` over this and all earlier lanes.
__device__ __forceinline__ uint64_t ScanLanes(uint64_t value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t before = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += before;
  }
  return value;
}

// The lane at which the running sum of `value` over lanes reaches `target`, and
// the sum before it. REQUIRES: it reaches it.
struct Place {
  int lane;
  uint64_t before;
};
__device__ __forceinline__ Place FindLane(uint64_t value, uint64_t target) {
  const uint64_t running = ScanLanes(value);
  const unsigned reached = __ballot_sync(kAll, running >= target);
  // 31 instead of none: numbers out of their ranges do no harm.
  const int lane = reached == 0 ? 31 : __ffs(static_cast<int>(reached)) - 1;
  return {lane, __shfl_sync(kAll, running - value, lane)};
}

// All threads of a sample: of one block, or of a cluster of `blocks`. All make
// the same calls.
//
// Each group sends one pair to all blocks. In a cluster, pairs are sent to
// every block's shared memory, where a barrier counts their bytes: a cluster
// barrier would wait for all stores and empty L1.
//
// Exchange n uses buffer and barrier n % 2. Two are enough: a group sends its
// pair of n + 1 after its warp has received and used all pairs of n. So when
// any warp has those of n + 1, every warp of every block is done with n, and
// - its pairs for n + 2 replace only pairs that are no longer read;
// - these bytes, and the arrival for n + 2, reach a barrier whose phase of n is
//   over, as its own warps have seen;
// - a warp that waits for n has sent nothing of n + 1, so no phase can end
//   after the one it waits for.
// All threads of a block wait for every exchange, so nothing is sent to a block
// that has ended.
template <bool kCluster>
class Team {
 public:
  // By all threads, at the start of the block. Returns when all blocks of the
  // cluster have started.
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

  // All pairs, in every thread, readable until the next call. `mine` is the
  // group's, the same in its threads. Orders nothing else in shared memory.
  __device__ __forceinline__ Pairs Exchange(const Pair& mine) {
    Memory<kCluster>& s = BlockMemory<kCluster>();
    const int buffer = turn_ % 2;
    if constexpr (kCluster) {
      const uint32_t barrier = Barrier(buffer);
      if (threadIdx.x == 0) {
        BarrierExpect(barrier, static_cast<uint32_t>(sizeof(Pair)) * kGroups *
                                   static_cast<uint32_t>(blocks_));
      }
      __syncwarp();  // the last pairs have been used
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

  // All blocks' pairs of group `threadIdx.x % 32`, each half combined.
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
