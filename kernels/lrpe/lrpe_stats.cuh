// Maximum and sum of exponentials of each feature over a sequence.
#ifndef RECURVE_KERNELS_LRPE_LRPE_STATS_CUH_
#define RECURVE_KERNELS_LRPE_LRPE_STATS_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe_cuda.h"

namespace recurve {
namespace lrpe {

constexpr int kStatsThreads = 128;
constexpr int kStatsChunk = 512;  // tokens of one block
constexpr int kStatsBatch = 4;    // tokens a thread takes at once

inline int64_t StatsChunks(const CudaLrpeParams& p) {
  return (p.length + kStatsChunk - 1) / kStatsChunk;
}

// The parts of the workspace, in this order.
struct Workspace {
  float2* stats;           // [batch, H, D] maximum, 1 / sum
  float2* partial;         // [batch, H, chunks, D] maximum, sum
  unsigned int* arrivals;  // [batch, H], 0 between launches
};

// (maximum, sum) of the union of two sets.
__device__ __forceinline__ float2 Merge(float2 a, float2 b) {
  const float max = fmaxf(a.x, b.x);
  if (max == -INFINITY) return make_float2(max, a.y + b.y);
  return make_float2(max, a.y * FastExp(a.x - max) + b.y * FastExp(b.x - max));
}

// kVector features of some tokens, as (maximum, sum).
template <typename T, int kVector>
struct Running {
  using Batch = Pack<T, kVector>[kStatsBatch];

  __device__ Running() {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      max[j] = -INFINITY;
      sum[j] = 0.0f;
    }
  }
  // Token i of the batch is the (first + i · step)-th, if that is below count.
  __device__ __forceinline__ static void Load(const T* x, int64_t stride,
                                              int first, int step, int count,
                                              Batch& in) {
#pragma unroll
    for (int i = 0; i < kStatsBatch; ++i) {
      const int token = first + i * step;
      if (token < count) in[i] = LoadPack<T, kVector>(x + token * stride);
    }
  }
  // The first `count` of the batch are tokens.
  __device__ __forceinline__ void Add(const Batch& in, int count) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      float value[kStatsBatch];
      float all = max[j];
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) {
        value[i] = i < count ? in[i].Get(j) : -INFINITY;
        all = fmaxf(all, value[i]);
      }
      // Features of −∞ alone so far; they must not hide the others.
      const float base = all == -INFINITY ? 0.0f : all;
      float total = sum[j] * FastExp(max[j] - base);
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) total += FastExp(value[i] - base);
      max[j] = all;
      sum[j] = total;
    }
  }

  float max[kVector];
  float sum[kVector];
};

// Chunk `chunk` of `chunks` of one head of one sequence, by one block. Threads
// lie along the features, then along tokens. Sums are made in an order that
// depends on the shape alone; the block that comes last merges the chunks, in
// their order.
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
    using Own = Running<T, kVector>;
    Own running;
    typename Own::Batch in;
    Own::Load(x, p.x_token_stride, own, step, count, in);
    for (int t = own; t < count; t += kStatsBatch * step) {
      typename Own::Batch next;
      Own::Load(x, p.x_token_stride, t + kStatsBatch * step, step, count, next);
      if (t + (kStatsBatch - 1) * step < count) {  // nothing to leave out
        running.Add(in, kStatsBatch);
      } else {
        running.Add(in, (count - t + step - 1) / step);
      }
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) in[i] = next[i];
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      shared[own * dim + lane * kVector + j] =
          make_float2(running.max[j], running.sum[j]);
    }
  }
  __syncthreads();
  const int64_t group = sequence * p.num_heads + head;
  float2* partial = w.partial + group * chunks * dim;
  for (int d = threadIdx.x; d < dim; d += kStatsThreads) {
    float2 total = shared[d];
    for (int t = 1; t < step; ++t) total = Merge(total, shared[t * dim + d]);
    partial[int64_t{chunk} * dim + d] = total;
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
    float2 total = __ldcg(partial + d);
#pragma unroll 8
    for (int c = 1; c < chunks; ++c) {
      total = Merge(total, __ldcg(partial + int64_t{c} * dim + d));
    }
    w.stats[group * dim + d] = make_float2(total.x, 1.0f / total.y);
  }
}

}  // namespace lrpe
}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_STATS_CUH_
