// Forming the queries of a row in a thread block, and their fragments.
#ifndef RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
#define RECURVE_KERNELS_TPA_TPA_QUERY_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_decode.cuh"

namespace recurve {

// Barrier of all warps but the one that copies.
inline constexpr int kConsumerBarrier = 15;

// Two elements of a B_q row that rotate together, with their position.
__device__ __forceinline__ float2 Rotated(float x1, float x2, float c,
                                          float s) {
  return {__fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s)),
          __fadd_rn(__fmul_rn(x1, s), __fmul_rn(x2, c))};
}

// B_q of a query with its position, to `b_q` [Rq, kFeatures]; zero beyond D.
// Loads go out several at a time: their latency is all there is to this.
template <int kFeatures>
__device__ __forceinline__ void StageBq(const TpaCudaDecodeParams& p,
                                        int64_t query, int threads,
                                        float* b_q) {
  constexpr int kPairs = kFeatures / 2;
  constexpr int kBatch = 4;
  const int dim = static_cast<int>(p.shape.head_dim);
  const int half = dim / 2;
  const int count = static_cast<int>(p.shape.q_rank) * kPairs;
  const float* x = p.b_q + query * p.stride;
  const bool rotate = p.position == LrpeType::kRotate;
  const float* cos = p.cos + query * half;
  const float* sin = p.sin + query * half;
  for (int first = threadIdx.x; first < count; first += kBatch * threads) {
    float x1[kBatch], x2[kBatch], c[kBatch], s[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * threads;
      const int k = i % kPairs;
      const bool exists = i < count && k < half;
      const float* row = x + i / kPairs * dim;
      x1[j] = exists ? row[k] : 0.0f;
      x2[j] = exists ? row[half + k] : 0.0f;
      c[j] = exists && rotate ? cos[k] : 1.0f;
      s[j] = exists && rotate ? sin[k] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * threads;
      const int k = i % kPairs;
      if (i >= count) continue;
      const float2 y =
          rotate ? Rotated(x1[j], x2[j], c[j], s[j]) : float2{x1[j], x2[j]};
      float* row = b_q + i / kPairs * kFeatures;
      // Pairs beyond the half fill what is left of the row.
      row[k < half ? k : 2 * k] = y.x;
      row[k < half ? half + k : 2 * k + 1] = y.y;
    }
  }
}

// A_q of the block's heads, to `a_q` [Rq, 16 · groups]; zero for heads that do
// not exist. `threads` is a multiple of the heads.
__device__ __forceinline__ void StageAq(const TpaDecodeArgs& args, int row,
                                        int threads, float* a_q) {
  constexpr int kBatch = 4;
  const TpaCudaDecodeParams& p = args.p;
  const int heads = 16 * args.groups;
  const int slot = threadIdx.x % heads;
  const int pair = blockIdx.y * args.groups + slot / 16;
  const int head = pair % args.head_groups * 16 + slot % 16;
  const int64_t query = int64_t{row} * p.new_tokens + pair / args.head_groups;
  const int num_heads = static_cast<int>(p.shape.num_heads);
  const bool exists = pair < args.pairs && head < num_heads;
  const float* x = p.a_q + query * p.stride + head;
  const int q_rank = static_cast<int>(p.shape.q_rank);
  const int step = threads / heads;
  for (int first = threadIdx.x / heads; first < q_rank;
       first += kBatch * step) {
    float a[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int r = first + j * step;
      a[j] = exists && r < q_rank ? x[r * num_heads] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int r = first + j * step;
      if (r < q_rank) a_q[r * heads + slot] = a[j];
    }
  }
}

// q[h] = (1/Rq) Σ_r A_q[r,h] · B_q[r] of the block's heads, times all that
// scales a score: D^-1/2, the 1/R of the keys, and log2(e), since weights are
// powers of two. Taken apart into terms of the cache's type: `terms`
// [kTerms, 16 · groups, kFeatures], rows swizzled for LoadQuery. `staging` has
// room for B_q [Rq, kFeatures] and A_q [Rq, 16 · groups]. Begins and ends with
// a barrier of the calling `threads`.
template <typename T, int kFeatures>
__device__ __forceinline__ void FormQueries(const TpaDecodeArgs& args, int row,
                                            int threads, float* staging,
                                            char* terms) {
  constexpr int kTerms = Half<T>::kTerms;
  const TpaCudaDecodeParams& p = args.p;
  const int heads = 16 * args.groups;
  const int q_rank = static_cast<int>(p.shape.q_rank);
  const int first_pair = blockIdx.y * args.groups;
  const int last_pair = min(first_pair + args.groups, args.pairs) - 1;
  float* b_q = staging;
  float* a_q = b_q + q_rank * kFeatures;
  const float scale = 1.4426950408889634f /
                      (sqrtf(static_cast<float>(p.shape.head_dim)) *
                       static_cast<float>(p.shape.q_rank * p.shape.kv_rank));
  NamedBarrier(kConsumerBarrier, threads);  // the memory is no longer in use
  StageAq(args, row, threads, a_q);
  const int first_t = first_pair / args.head_groups;
  const int last_t = last_pair / args.head_groups;
#pragma unroll 1
  for (int t = first_t; t <= last_t; ++t) {
    StageBq<kFeatures>(p, int64_t{row} * p.new_tokens + t, threads, b_q);
    NamedBarrier(kConsumerBarrier, threads);
    // Four heads by four features a thread.
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * kFeatures / 16; i += threads) {
      const int h = i / (kFeatures / 4) * 4;
      const int d = i % (kFeatures / 4) * 4;
      const int pair = first_pair + h / 16;
      if (pair < args.pairs && pair / args.head_groups != t) continue;
      float sum[4][4] = {};
#pragma unroll 4
      for (int r = 0; r < q_rank; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(a_q + r * heads + h);
        const float4 b =
            *reinterpret_cast<const float4*>(b_q + r * kFeatures + d);
        const float bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[0][j] += a.x * bs[j];
          sum[1][j] += a.y * bs[j];
          sum[2][j] += a.z * bs[j];
          sum[3][j] += a.w * bs[j];
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t low[kTerms];
        uint32_t high[kTerms];
        Split<T>(sum[j][0] * scale, sum[j][1] * scale, low);
        Split<T>(sum[j][2] * scale, sum[j][3] * scale, high);
        char* to = terms + (h + j) * kFeatures * 2 +
                   16 * ((d / 8) ^ ((h + j) % 8)) + d % 8 * 2;
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          *reinterpret_cast<uint2*>(to + term * heads * kFeatures * 2) = {
              low[term], high[term]};
        }
      }
    }
    NamedBarrier(kConsumerBarrier, threads);
  }
}

// The fragment of step `step` (16 features) of a group of 16 heads, as the left
// operand of products. `terms` is where the group's rows of the wanted term
// begin.
template <int kFeatures>
__device__ __forceinline__ void LoadQuery(uint32_t (&a)[4], uint32_t terms,
                                          int step) {
  const int lane = threadIdx.x % 32;
  const int r = lane % 16;
  const int chunk = (2 * step + lane / 16) ^ (r % 8);
  LoadMatrices(a, terms + r * kFeatures * 2 + 16 * chunk);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
