// Finds where a truncation ends, by histograms in shared memory. Device code
// only.
#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_CUT_CUH_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_CUT_CUH_

#include <cstdint>

#include "kernels/sampling/sampling_row.cuh"
#include "kernels/sampling/sampling_team.cuh"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace sampling {

// ---- sums by bins, a block's own in its shared memory ----

template <bool kCluster>
__device__ __forceinline__ void AddToBin(int bin, uint64_t amount) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  const auto low = static_cast<uint32_t>(amount);
  auto high = static_cast<uint32_t>(amount >> 32);
  const uint32_t before = atomicAdd(&s.low[bin], low);
  if (before + low < before) ++high;
  if (high != 0) atomicAdd(&s.high[bin], high);
}
template <bool kCluster>
__device__ __forceinline__ uint64_t BinSum(int bin) {
  const Memory<kCluster>& s = BlockMemory<kCluster>();
  return uint64_t{s.high[bin]} << 32 | s.low[bin];
}
// Clears the collected keys, too.
template <bool kCluster>
__device__ __forceinline__ void ClearBins() {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads<kCluster>)
    s.low[i] = s.high[i] = 0;
  if (threadIdx.x == 0) s.num_collected = 0;
  __syncthreads();
}

// Finds the bin in which the sum over all blocks' bins reaches a target, in two
// exchanges: sums of 64 bins each, then the bins of the 64 that contain it.
template <bool kCluster>
class BinSearch {
 public:
  // Called when all of the block's amounts are in its bins.
  __device__ __forceinline__ explicit BinSearch(Team<kCluster>& team)
      : team_(team) {
    __syncthreads();
    constexpr int kOfThread = kBins / kThreads<kCluster>;
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i)
      sum += BinSum<kCluster>(kOfThread * static_cast<int>(threadIdx.x) + i);
    sum = ReduceLanes<kLanes<kCluster>>(sum, Sum());
    sum_ = team.OfBlocks(team.Exchange({sum, 0}), Sum(), Sum()).a;
  }
  __device__ __forceinline__ uint64_t Total() const {
    return ReduceLanes<32>(sum_, Sum());
  }
  // REQUIRES: 1 <= *target <= Total(). Subtracts the sums of earlier bins from
  // it.
  __device__ __forceinline__ int Find(uint64_t* target) {
    const Place group = FindLane(sum_, *target);
    *target -= group.before;
    // Lane i has bins 2i and 2i + 1 of the 64.
    Pair two =
        TwoBins(kGroupBins * group.lane,
                kCluster ? team_.Group() : static_cast<int>(threadIdx.x) % 32);
    if constexpr (kCluster)
      two = team_.OfBlocks(team_.Exchange(two), Sum(), Sum());
    const Place pair = FindLane(two.a + two.b, *target);
    *target -= pair.before;
    int bin = kGroupBins * group.lane + 2 * pair.lane;
    const uint64_t first = __shfl_sync(kAll, two.a, pair.lane);
    if (first < *target) {
      *target -= first;
      ++bin;
    }
    return bin;
  }

 private:
  __device__ __forceinline__ static Pair TwoBins(int first, int i) {
    return {BinSum<kCluster>(first + 2 * i),
            BinSum<kCluster>(first + 2 * i + 1)};
  }

  Team<kCluster>& team_;
  uint64_t sum_;  // lane i: of bins 64i to 64i + 63
};

// ---- few tokens, ranked one by one ----

// Adds a key to the block's collected keys.
template <bool kCluster>
__device__ __forceinline__ void Collect(uint64_t key) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  // Once they are too many, no more are counted.
  if (*const_cast<volatile int32_t*>(&s.num_collected) > kCollected<kCluster>)
    return;
  const int i = atomicAdd(&s.num_collected, 1);
  if (i < kCollected<kCluster>) s.collected[i] = key;
}

// Returns the number of keys that all blocks collected, and leaves the keys,
// unordered, in the candidates of every block; or -1 if there are too many.
template <bool kCluster, typename Amount>
__device__ __forceinline__ int GatherCandidates(Team<kCluster>& team,
                                                Amount amount_of) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // all are collected
  const int own = s.num_collected;
  const auto key_of = [&](int i) -> uint64_t {
    return i < own ? s.collected[i] : 0;
  };
  int count = own;
  if constexpr (kCluster) {
    // The first pair holds the count, each other one two keys.
    const int at = 2 * (team.Group() - 1);
    const Pair mine = at < 0 ? Pair{static_cast<uint64_t>(own), 0}
                             : Pair{key_of(at), key_of(at + 1)};
    const typename Team<kCluster>::Pairs all = team.Exchange(mine);
    const int block = thread / (2 * kGroups);
    const int i = thread % (2 * kGroups);
    static_assert(kThreads<kCluster> == kSampleMostBlocks * 2 * kGroups);
    bool fit = true;
    int of_block = 0;
    int before = 0;
    count = 0;
    for (int b = 0; b < team.blocks(); ++b) {
      const int more = static_cast<int>(all[b][0].a);
      fit = fit && more <= kCollected<kCluster>;
      if (b < block) before += more;
      if (b == block) of_block = more;
      count += more;
    }
    if (!fit || count > kCandidates) return -1;
    if (i < of_block) {
      const Pair& two = all[block][1 + i / 2];
      const uint64_t key = i % 2 == 0 ? two.a : two.b;
      s.candidates[before + i] = {key, amount_of(LogitOf(key))};
    }
  } else {
    if (count > kCandidates) return -1;
    if (thread < count) {
      const uint64_t key = s.collected[thread];
      s.candidates[thread] = {key, amount_of(LogitOf(key))};
    }
  }
  __syncthreads();
  return count;
}

// The key of the candidate at which the sum of amounts, in rank order, reaches
// `target`.
template <bool kCluster>
__device__ __forceinline__ uint64_t CutCandidates(int count, uint64_t target) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  constexpr int kEach = kThreads<kCluster> / kCandidates;  // threads
  const int candidate = static_cast<int>(threadIdx.x) / kEach;
  const int part = static_cast<int>(threadIdx.x) % kEach;
  Pair mine = {0, 0};
  uint64_t before = 0;
  if (candidate < count) {
    mine = s.candidates[candidate];
    for (int i = part; i < count; i += kEach) {
      const Pair other = s.candidates[i];
      if (other.a > mine.a) before += other.b;
    }
  }
  before = ReduceLanes<kEach>(before, Sum());
  if (part == 0 && before < target && before + mine.b >= target) s.cut = mine.a;
  __syncthreads();
  return s.cut;
}

// ---- both ----

// What to cut by: the number of tokens, or their weights.
struct Cut {
  uint64_t floor;  // only tokens with this key or a larger one
  int64_t top_k;   // by number: tokens to keep
  float top_p;     // by weight
};

// The key of the last token, in rank order, that `cut` keeps: the one at which
// the sum of amounts reaches its target. `range` is the largest distance below
// the largest logit that counts.
//
// First it finds the token's bin among bins of logits of equal width. Usually
// few tokens are in that, and each is ranked. While there are more, narrower
// bins of keys follow.
//
// Not inlined: by number it has two callers.
template <bool kCluster, bool kByWeight>
__device__ __noinline__ uint64_t FindCut(Team<kCluster>& team,
                                         const Row<kCluster> row,
                                         const Weigher<kCluster> weigh,
                                         float range, const Cut cut) {
  const auto amount_of = [&](float logit) -> uint64_t {
    return kByWeight ? weigh(logit) : uint64_t{1};
  };
  const auto peak = static_cast<float>(weigh.max);
  const float scale = static_cast<float>(kBins) / range;
  // 0 for a NaN, which a range of 0 or an infinite range can give.
  const auto bin_of = [&](float logit) {
    return min(kBins - 1, __float2int_rz((peak - logit) * scale));
  };

  ClearBins<kCluster>();
  row.EachWanted(
      [&](float logit, int32_t id) {
        return logit > -INFINITY && KeyOf(logit, id) >= cut.floor;
      },
      amount_of,
      [&](float logit, int32_t, uint64_t amount) {
        if (amount != 0) AddToBin<kCluster>(bin_of(logit), amount);
      });
  BinSearch<kCluster> logits(team);
  const uint64_t total = logits.Total();
  uint64_t low = cut.floor > 0 ? cut.floor : 1;
  uint64_t target = static_cast<uint64_t>(cut.top_k);
  if constexpr (kByWeight) {
    target = SampleThreshold(cut.top_p, total);
  } else if (total <= target) {
    return low;  // all are kept
  }
  const int first_bin = logits.Find(&target);

  // The token is the one at which the sum reaches `target` among those with
  // keys from `low` to `high`, and at first in that bin.
  uint64_t high = ~uint64_t{0};
  bool first = true;
  while (true) {
    uint64_t largest = 0;
    uint64_t smallest = ~uint64_t{0};
    row.Each([&](float logit, int32_t id) {
      if (!(logit > -INFINITY)) return;
      const uint64_t key = KeyOf(logit, id);
      if (key < low || key > high) return;
      if (first && bin_of(logit) != first_bin) return;
      largest = key > largest ? key : largest;
      smallest = key < smallest ? key : smallest;
      Collect<kCluster>(key);
    });
    const int count = GatherCandidates(team, amount_of);
    if (count >= 0) return CutCandidates<kCluster>(count, target);

    // The interval shrinks to the tokens in it, and is divided.
    const Pair ends = team.Extremes(largest, smallest);
    high = ends.a;
    low = ends.b;
    first = false;
    const int shift = max(0, 64 - __clzll(high - low) - kBinBits);
    ClearBins<kCluster>();
    row.EachWanted(
        [&](float logit, int32_t id) {
          const uint64_t key = KeyOf(logit, id);
          return logit > -INFINITY && key >= low && key <= high;
        },
        amount_of,
        [&](float logit, int32_t id, uint64_t amount) {
          if (amount == 0) return;
          const uint64_t below = high - KeyOf(logit, id);
          AddToBin<kCluster>(static_cast<int>(below >> shift), amount);
        });
    BinSearch<kCluster> keys(team);
    high -= static_cast<uint64_t>(keys.Find(&target)) << shift;
    const uint64_t width = (uint64_t{1} << shift) - 1;
    if (high - low > width) low = high - width;
    if (low == high) return high;
  }
}

}  // namespace sampling
}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_CUT_CUH_
