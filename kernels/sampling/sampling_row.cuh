// A block's view of a row of logits: its ids, their ranks and weights. Device
// code only.
#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_ROW_CUH_

#include <cstdint>

#include "kernels/sampling/sampling_team.cuh"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace sampling {

// A larger logit has a larger key; among equals, the smaller id has. No
// possible token has key 0 or kBroken.
__device__ __forceinline__ uint64_t KeyOf(float logit, int32_t id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 equals +0
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
inline constexpr uint64_t kBroken = ~uint64_t{0};
__device__ __forceinline__ int32_t IdOf(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ float LogitOf(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((order >> 31) != 0 ? order ^ 0x80000000u : ~order);
}

// The row to sample, of which a block has ids [begin, end); `begin` is a
// multiple of 4.
template <bool kCluster>
struct Row {
  const float* logits;
  int32_t begin;
  int32_t end;
  bool aligned;

  __device__ __forceinline__ bool Has(int32_t id) const {
    return id >= begin && id < end;
  }

  // Calls f(logit, id) for every id in [from, to), by threads `thread`, +
  // `threads`, ...; `from` is a multiple of 4.
  template <typename F>
  __device__ __forceinline__ void Each(int32_t from, int32_t to, int thread,
                                       int threads, F f) const {
    const int32_t whole = aligned ? from + (to - from) / 4 * 4 : from;
    // A block of a cluster has few ids, and unrolled code must be fetched.
    constexpr int kUnroll = kCluster ? 1 : 2;
#pragma unroll kUnroll
    for (int32_t id = from + 4 * thread; id < whole; id += 4 * threads) {
      const float4 four = *reinterpret_cast<const float4*>(logits + id);
      f(four.x, id);
      f(four.y, id + 1);
      f(four.z, id + 2);
      f(four.w, id + 3);
    }
    for (int32_t id = whole + thread; id < to; id += threads) f(logits[id], id);
  }
  // Calls f(logit, id, value(logit)) where wanted(logit, id). The values of
  // four ids are computed together, so that branch-free operations do not wait
  // for each other.
  template <typename Wanted, typename Value, typename F>
  __device__ __forceinline__ void EachWanted(int32_t from, int32_t to,
                                             int thread, int threads,
                                             Wanted wanted, Value value,
                                             F f) const {
    const int32_t whole = aligned ? from + (to - from) / 4 * 4 : from;
#pragma unroll 1
    for (int32_t id = from + 4 * thread; id < whole; id += 4 * threads) {
      const float4 four = *reinterpret_cast<const float4*>(logits + id);
      const float x[4] = {four.x, four.y, four.z, four.w};
      bool any = false;
#pragma unroll
      for (int i = 0; i < 4; ++i) any |= wanted(x[i], id + i);
      if (!any) continue;
      decltype(value(0.0f)) values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = value(x[i]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (wanted(x[i], id + i)) f(x[i], id + i, values[i]);
      }
    }
#pragma unroll 1
    for (int32_t id = whole + thread; id < to; id += threads) {
      const float x = logits[id];
      if (wanted(x, id)) f(x, id, value(x));
    }
  }
  // The same for all of the block's ids, by its threads.
  template <typename F>
  __device__ __forceinline__ void Each(F f) const {
    Each(begin, end, threadIdx.x, kThreads<kCluster>, f);
  }
  template <typename Wanted, typename Value, typename F>
  __device__ __forceinline__ void EachWanted(Wanted wanted, Value value,
                                             F f) const {
    EachWanted(begin, end, threadIdx.x, kThreads<kCluster>, wanted, value, f);
  }
  // The same for ids not yet in L1: a block of a cluster issues all its loads
  // before it waits for any.
  template <typename F>
  __device__ __forceinline__ void EachOfMemory(F f) const {
    int32_t from = begin;
    if constexpr (kCluster) {
      constexpr int kFours = 4;  // of a thread at a time
      constexpr int kStep = 4 * kThreads<kCluster>;
      const int32_t whole = aligned ? begin + (end - begin) / 4 * 4 : begin;
#pragma unroll 1
      for (; from < whole; from += kFours * kStep) {
        const int32_t first = from + 4 * static_cast<int32_t>(threadIdx.x);
        float4 fours[kFours];
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          if (first + i * kStep >= whole) continue;
          fours[i] =
              *reinterpret_cast<const float4*>(logits + first + i * kStep);
        }
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          const int32_t id = first + i * kStep;
          if (id >= whole) continue;
          f(fours[i].x, id);
          f(fours[i].y, id + 1);
          f(fours[i].z, id + 2);
          f(fours[i].w, id + 3);
        }
      }
      from = whole;
    }
    Each(from, end, threadIdx.x, kThreads<kCluster>, f);
  }
};

template <bool kCluster>
struct Weigher {
  double max;
  double inverse_temperature;

  // SampleExp without its branch.
  __device__ __forceinline__ double Exact(float logit) const {
    const double x = SampleMul(SampleAdd(logit, -max), inverse_temperature);
    const bool counts = x >= kSampleExpMin;
    const double weight =
        SampleExpInRange(counts ? x : 0, BlockMemory<kCluster>().exp_table);
    return counts ? weight : 0;
  }
  __device__ __forceinline__ uint64_t operator()(float logit) const {
    return SampleFixed(Exact(logit));
  }
};

}  // namespace sampling
}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
