// Forming the queries of a row in a thread block, and their fragments.
#ifndef RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
#define RECURVE_KERNELS_TPA_TPA_QUERY_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_decode.cuh"

namespace recurve {

// Barrier of all warps but the one that copies.
inline constexpr int kConsumerBarrier = 15;

// Element `d` of B_q[r] of a query, with its position; zero beyond D.
__device__ __forceinline__ float EncodedBq(const TpaCudaDecodeParams& p,
                                           int64_t query, int r, int d) {
  const int dim = static_cast<int>(p.shape.head_dim);
  if (d >= dim) return 0.0f;
  const float* x = p.b_q + query * p.stride + r * dim;
  if (p.position == LrpeType::kNone) return x[d];
  const int half = dim / 2;
  const int k = d < half ? d : d - half;
  const float c = p.cos[query * half + k];
  const float s = p.sin[query * half + k];
  return d < half ? __fsub_rn(__fmul_rn(x[k], c), __fmul_rn(x[half + k], s))
                  : __fadd_rn(__fmul_rn(x[k], s), __fmul_rn(x[half + k], c));
}

// Writes q[h] = (1/Rq) Σ_r A_q[r,h] · B_q[r] of the block's heads to `q`
// [16 · groups, kFeatures + 4], times all that scales a score: D^-1/2, the 1/R
// of the keys, and log2(e), since weights are powers of two. `work` has room
// for q, then B_q [Rq, kFeatures] and A_q [Rq, 16 · groups]. Begins and ends
// with a barrier of the calling `threads`.
template <int kFeatures>
__device__ void FormQueries(const TpaDecodeArgs& args, int row, int threads,
                            float* work) {
  const TpaCudaDecodeParams& p = args.p;
  const int heads = 16 * args.groups;
  const int q_rank = static_cast<int>(p.shape.q_rank);
  const int first_pair = blockIdx.y * args.groups;
  const int last_pair = min(first_pair + args.groups, args.pairs) - 1;
  constexpr int kPitch = kFeatures + 4;
  float* q = work;
  float* b_q = q + heads * kPitch;
  float* a_q = b_q + q_rank * kFeatures;
  const float scale = 1.4426950408889634f /
                      (sqrtf(static_cast<float>(p.shape.head_dim)) *
                       static_cast<float>(p.shape.q_rank * p.shape.kv_rank));
  NamedBarrier(kConsumerBarrier, threads);  // `work` is no longer in use
  for (int i = threadIdx.x; i < q_rank * heads; i += threads) {
    const int r = i / heads;
    const int pair = first_pair + i % heads / 16;
    const int head = pair % args.head_groups * 16 + i % 16;
    const int64_t query = int64_t{row} * p.new_tokens + pair / args.head_groups;
    const bool exists = pair < args.pairs && head < p.shape.num_heads;
    a_q[i] =
        exists ? p.a_q[query * p.stride + r * p.shape.num_heads + head] : 0.0f;
  }
  const int first_t = first_pair / args.head_groups;
  const int last_t = last_pair / args.head_groups;
  for (int t = first_t; t <= last_t; ++t) {
    const int64_t query = int64_t{row} * p.new_tokens + t;
    for (int i = threadIdx.x; i < q_rank * kFeatures; i += threads) {
      b_q[i] = EncodedBq(p, query, i / kFeatures, i % kFeatures);
    }
    NamedBarrier(kConsumerBarrier, threads);
    // Four heads by four features a thread.
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
        const float as[4] = {a.x, a.y, a.z, a.w};
        const float bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 16; ++j) sum[j / 4][j % 4] += as[j / 4] * bs[j % 4];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        *reinterpret_cast<float4*>(q + (h + j) * kPitch + d) =
            make_float4(sum[j][0] * scale, sum[j][1] * scale, sum[j][2] * scale,
                        sum[j][3] * scale);
      }
    }
    NamedBarrier(kConsumerBarrier, threads);
  }
}

// A power of two that brings the largest of a row near 2^8, so that its terms
// stay within float16's range.
__device__ __forceinline__ float RangeScale(float largest) {
  if (!(largest > 0.0f) || !(largest < 1e30f)) return 1.0f;
  return exp2f(static_cast<float>(8 - ilogbf(largest)));
}

// The queries of one group of 16 heads as the left operand of products, taken
// apart into terms of the cache's type that add up to the float32 value.
template <typename T, int kFeatures, int kWarps, bool kInRegisters>
class QueryFragments {
 public:
  static constexpr int kSteps = kFeatures / 16;
  static constexpr int kTerms = Half<T>::kTerms;

  // `q` as FormQueries leaves it; `terms` (for !kInRegisters) is
  // [kTerms, 16 · groups, kFeatures].
  __device__ __forceinline__ void Build(const float* q, uint32_t terms,
                                        int groups, int group, int part) {
    constexpr int kPitch = kFeatures + 4;
    const int lane = threadIdx.x % 32;
    const float* row = q + (16 * group + lane / 4) * kPitch + lane % 4 * 2;
    float scale[2] = {1.0f, 1.0f};
    if constexpr (Half<T>::kNeedsScale) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float largest = 0.0f;
        for (int k = 0; k < kFeatures; k += 8) {
          const float2 x =
              *reinterpret_cast<const float2*>(row + 8 * i * kPitch + k);
          largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        scale[i] = RangeScale(largest);
        undo_[i] = 1.0f / scale[i];
      }
    }
    group_terms_ = terms + 16 * group * kFeatures * 2;
    term_bytes_ = 16 * groups * kFeatures * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!kInRegisters && step % kWarps != part) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row half i % 2, feature half i / 2
        const float2 x = *reinterpret_cast<const float2*>(
            row + 8 * (i % 2) * kPitch + 16 * step + 8 * (i / 2));
        uint32_t parts[kTerms];
        Split<T>(x.x * scale[i % 2], x.y * scale[i % 2], parts);
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          if constexpr (kInRegisters) {
            fragments_[step][term][i] = parts[term];
          } else {
            const int r = lane / 4 + 8 * (i % 2);
            const int chunk = (2 * step + i / 2) ^ (r % 8);
            const uint32_t at = group_terms_ + term * term_bytes_ +
                                r * kFeatures * 2 + 16 * chunk + lane % 4 * 4;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(parts[term])
                         : "memory");
          }
        }
      }
    }
  }

  // Registers may not be indexed at run time: `step` and `term` are constants
  // once loops are unrolled.
  __device__ __forceinline__ void Get(int step, int term,
                                      uint32_t (&a)[4]) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = fragments_[step][term][i];
    } else {
      const int lane = threadIdx.x % 32;
      const int r = lane % 16;
      const int chunk = (2 * step + lane / 16) ^ (r % 8);
      LoadMatrices(a, group_terms_ + term * term_bytes_ + r * kFeatures * 2 +
                          16 * chunk);
    }
  }

  // Scores of row half i are to be multiplied by this.
  __device__ __forceinline__ float Undo(int i) const {
    return Half<T>::kNeedsScale ? undo_[i] : 1.0f;
  }

 private:
  uint32_t fragments_[kInRegisters ? kSteps : 1][kTerms][4];
  float undo_[2] = {1.0f, 1.0f};
  uint32_t group_terms_;
  uint32_t term_bytes_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
