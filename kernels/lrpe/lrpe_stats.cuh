// Maximum and sum of exponentials of each feature over a sequence.
#ifndef RECURVE_KERNELS_LRPE_LRPE_STATS_CUH_
#define RECURVE_KERNELS_LRPE_LRPE_STATS_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/lrpe/lrpe_cuda.h"

namespace recurve {
namespace lrpe {

constexpr int kStatsThreads = 128;
constexpr int kStatsChunk = 256;  // tokens of one block
constexpr int kStatsBatch = 8;    // loads a thread has in flight

inline int64_t StatsChunks(const CudaLrpeParams& p) {
  return (p.length + kStatsChunk - 1) / kStatsChunk;
}

// The parts of the workspace, in this order.
struct Workspace {
  float2* stats;           // [batch, H, D] maximum, 1 / sum
  float2* partial;         // [batch, H, chunks, D] maximum, sum
  unsigned int* arrivals;  // [batch, H], 0 between launches
};

inline Workspace SplitWorkspace(const CudaLrpeParams& p, void* workspace) {
  Workspace w;
  w.stats = static_cast<float2*>(workspace);
  w.partial = w.stats + p.batch * p.num_heads * p.dim;
  w.arrivals = reinterpret_cast<unsigned int*>(
      w.partial + p.batch * p.num_heads * p.dim * StatsChunks(p));
  return w;
}

// (maximum, sum) of the union of two sets.
__device__ __forceinline__ float2 Merge(float2 a, float2 b) {
  const float max = fmaxf(a.x, b.x);
  if (max == -INFINITY) return make_float2(max, a.y + b.y);
  return make_float2(max, a.y * expf(a.x - max) + b.y * expf(b.x - max));
}

// Grid: (chunks, H, batch). Threads lie along the features, then along tokens.
// Sums are made in an order that depends on the shape alone; the block that
// comes last merges the chunks, in their order.
template <typename T>
__global__ void __launch_bounds__(kStatsThreads)
    stats_kernel(const __grid_constant__ CudaLrpeParams p,
                 const __grid_constant__ Workspace w) {
  constexpr int kVector = 16 / sizeof(T);
  __shared__ float2 shared[kStatsThreads * kVector];
  __shared__ bool last;
  const int dim = static_cast<int>(p.dim);
  const int lanes = dim / kVector;
  const int tokens_at_once = kStatsThreads / lanes;
  const int lane = threadIdx.x % lanes;
  const int first = threadIdx.x / lanes;
  const int64_t head = blockIdx.y;
  const int64_t sequence = blockIdx.z;
  const int64_t begin = int64_t{blockIdx.x} * kStatsChunk;
  const int count =
      static_cast<int>(min(int64_t{kStatsChunk}, p.length - begin));
  const T* x = static_cast<const T*>(p.x) + sequence * p.x_batch_stride +
               begin * p.x_token_stride + head * p.x_head_stride +
               lane * kVector;

  float max[kVector];
  float sum[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    max[j] = -INFINITY;
    sum[j] = 0.0f;
  }
  if (first < tokens_at_once) {
    for (int t = first; t < count; t += kStatsBatch * tokens_at_once) {
      Pack<T, kVector> in[kStatsBatch];
#pragma unroll
      for (int i = 0; i < kStatsBatch; ++i) {
        const int token = t + i * tokens_at_once;
        if (token < count) {
          in[i] = LoadPack<T, kVector>(x + token * p.x_token_stride);
        }
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        float value[kStatsBatch];
        float batch_max = max[j];
#pragma unroll
        for (int i = 0; i < kStatsBatch; ++i) {
          value[i] = t + i * tokens_at_once < count ? ToFloat(in[i].value[j])
                                                    : -INFINITY;
          batch_max = fmaxf(batch_max, value[i]);
        }
        // A column of −∞ alone has no softmax; it must not hide the others.
        const float base = batch_max == -INFINITY ? 0.0f : batch_max;
        float batch_sum = sum[j] * __expf(max[j] - base);
#pragma unroll
        for (int i = 0; i < kStatsBatch; ++i) {
          batch_sum += __expf(value[i] - base);
        }
        max[j] = batch_max;
        sum[j] = batch_sum;
      }
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      shared[first * dim + lane * kVector + j] = make_float2(max[j], sum[j]);
    }
  }
  __syncthreads();
  const int64_t group = sequence * p.num_heads + head;
  float2* partial = w.partial + group * gridDim.x * dim;
  for (int d = threadIdx.x; d < dim; d += kStatsThreads) {
    float2 total = shared[d];
    for (int t = 1; t < tokens_at_once; ++t) {
      total = Merge(total, shared[t * dim + d]);
    }
    partial[int64_t{blockIdx.x} * dim + d] = total;
  }

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {  // wraps to 0 for the next launch
    last = atomicInc(w.arrivals + group, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int d = threadIdx.x; d < dim; d += kStatsThreads) {
    float2 total = __ldcg(partial + d);
#pragma unroll 8
    for (int c = 1; c < gridDim.x; ++c) {
      total = Merge(total, __ldcg(partial + int64_t{c} * dim + d));
    }
    w.stats[group * dim + d] = make_float2(total.x, 1.0f / total.y);
  }
}

}  // namespace lrpe
}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_STATS_CUH_
