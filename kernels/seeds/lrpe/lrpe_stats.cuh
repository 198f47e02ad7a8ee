// Sums of exponentials of each feature over a sequence: the first pass of
// lrpe_sequence.cu.
#ifndef RECURVE_KERNELS_SEEDS_LRPE_LRPE_STATS_CUH_
#define RECURVE_KERNELS_SEEDS_LRPE_LRPE_STATS_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/seeds/lrpe/lrpe_cuda.h"
#include "kernels/seeds/lrpe/lrpe_token.cuh"

namespace recurve {
namespace lrpe {

constexpr int kStatsThreads = 128;
constexpr int kStatsChunk = 512;  // tokens of one block
constexpr int kStatsBatch = 4;    // tokens a thread takes at once

inline int64_t StatsChunks(const CudaLrpeParams& p) {
  return (p.length + kStatsChunk - 1) / kStatsChunk;
}

// Parts of the workspace, in this order. `shift` is what the encoding needs of
// a feature: log2 Σ e^x, with softmax(x) = 2^(x · log2 e − shift). Rounding it
// costs no more than rounding the largest x.
struct Workspace {
  float* shift;            // [batch, H, D]
  float2* partial;         // [batch, H, chunks, D] base, sum
  unsigned int* arrivals;  // [batch, H], 0 between launches
};

// Σ e^x is kept as (base, sum) with Σ e^x = 2^base · sum. The initial base is
// not −∞, which would give NaN for empty sets.
constexpr float kLowest = -3e38f;
// Larger sums get a new base. So do sums that overflowed, and NaN.
constexpr float kLargest = 0x1p64f;

// e^x / 2^base.
__device__ __forceinline__ float Scaled(float x, float base) {
  return FastExp2(fmaf(x, kLog2E, -base));
}

// Union of `count` sets. The base is found first, so that the terms of the sum
// do not wait for each other.
template <int kCount, typename Load>
__device__ __forceinline__ float2 Union(int count, const Load& load) {
  float2 total = make_float2(kLowest, 0.0f);
  for (int first = 0; first < count; first += kCount) {
    float2 set[kCount];
    float base = total.x;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      set[i] = make_float2(kLowest, 0.0f);
      if (first + i < count) set[i] = load(first + i);
      base = fmaxf(base, set[i].x);
    }
    float sum = total.y * FastExp2(total.x - base);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sum = fmaf(set[i].y, FastExp2(set[i].x - base), sum);
    }
    total = make_float2(base, sum);
  }
  return total;
}

// kVector features of some tokens.
template <typename T, int kVector>
struct Running {
  using Batch = Pack<T, kVector>[kStatsBatch];

  __device__ Running() {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      base[j] = kLowest;
      sum[j] = 0.0f;
    }
  }
  // Loads the first `count` of a batch, `hop` elements apart. Most batches are
  // whole and need no tests.
  __device__ __forceinline__ static void Load(const T* x, int64_t hop,
                                              int count, Batch& in) {
    if (count >= kStatsBatch) {
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) {
        in[i] = LoadPack<T, kVector>(x + i * hop);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) {
        if (i < count) in[i] = LoadPack<T, kVector>(x + i * hop);
      }
    }
  }
  // A base need not be the maximum: while the sums stay in range, none is
  // searched for. The first batch of a thread always overflows.
  __device__ __forceinline__ void Add(const Batch& in, int count) {
    if (count >= kStatsBatch) {
      float total[kVector];
      bool in_range = true;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        total[j] = sum[j];
#pragma unroll
        for (int i = 0; i < kStatsBatch; ++i) {
          total[j] += Scaled(in[i].Get(j), base[j]);
        }
        in_range = in_range && total[j] < kLargest;
      }
      if (in_range) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) sum[j] = total[j];
        return;
      }
    }
    // Unpacked again: values of a rare path must not stay in registers.
    Batch again;
#pragma unroll
    for (int i = 0; i < kStatsBatch; ++i) {
      again[i] = in[i];
#pragma unroll
      for (uint32_t& word : again[i].word) asm volatile("" : "+r"(word));
    }
    AddOnNewBase(again, count);
  }

  float base[kVector];
  float sum[kVector];

 private:
  __device__ __forceinline__ void AddOnNewBase(const Batch& in, int count) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      float value[kStatsBatch];
      float max = base[j];
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) {
        value[i] = i < count ? in[i].Get(j) : -INFINITY;
        max = fmaxf(max, value[i] * kLog2E);
      }
      float total = sum[j] * FastExp2(base[j] - max);
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) total += Scaled(value[i], max);
      base[j] = max;
      sum[j] = total;
    }
  }
};

// Chunk `chunk` of `chunks` of one head of one sequence, by one block. Threads
// run along the features, then along tokens. The order of sums depends on the
// shape alone; the last block to finish merges the chunks, in their order.
template <typename T>
__device__ __forceinline__ void ChunkStats(const CudaLrpeParams& p,
                                           const Workspace& w, int64_t sequence,
                                           int64_t head, int chunk,
                                           int chunks) {
  constexpr int kVector = 16 / sizeof(T);
  __shared__ float2 shared[kStatsThreads * kVector];
  __shared__ bool last;
  const int dim = static_cast<int>(p.dim);
  const int lanes = dim / kVector;
  const int step = kStatsThreads / lanes;  // tokens at once
  const int lane = threadIdx.x % lanes;
  const int own = threadIdx.x / lanes;
  const int64_t begin = int64_t{chunk} * kStatsChunk;
  const int count =
      static_cast<int>(min(int64_t{kStatsChunk}, p.length - begin));
  const T* x = static_cast<const T*>(p.x) + sequence * p.x_batch_stride +
               begin * p.x_token_stride + head * p.x_head_stride +
               lane * kVector;
  if (own < step) {
    Running<T, kVector> running;
    typename Running<T, kVector>::Batch in;
    const int64_t hop = step * p.x_token_stride;
    x += own * p.x_token_stride;
    int left = (count - own + step - 1) / step;  // tokens of this thread
    running.Load(x, hop, left, in);
    while (left > 0) {
      typename Running<T, kVector>::Batch next;
      x += kStatsBatch * hop;
      running.Load(x, hop, left - kStatsBatch, next);
      running.Add(in, left);
      left -= kStatsBatch;
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) in[i] = next[i];
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      shared[own * dim + lane * kVector + j] =
          make_float2(running.base[j], running.sum[j]);
    }
  }
  __syncthreads();
  const int64_t group = sequence * p.num_heads + head;
  float2* partial = w.partial + group * chunks * dim;
  for (int d = threadIdx.x; d < dim; d += kStatsThreads) {
    partial[int64_t{chunk} * dim + d] =
        Union<8>(step, [&](int t) { return shared[t * dim + d]; });
  }

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {  // wraps to 0 for the next launch
    const unsigned end = chunks - 1;
    last = atomicInc(w.arrivals + group, end) == end;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int d = threadIdx.x; d < dim; d += kStatsThreads) {
    const float2 total = Union<8>(
        chunks, [&](int c) { return __ldcg(partial + int64_t{c} * dim + d); });
    w.shift[group * dim + d] = total.x + log2f(total.y);
  }
}

}  // namespace lrpe
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LRPE_LRPE_STATS_CUH_
