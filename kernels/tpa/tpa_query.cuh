// Forming queries for decode, some groups of 8 heads of a token a thread block:
// device functions of tpa_queries.cu, tpa_append.cu and decode that appends.
#ifndef RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
#define RECURVE_KERNELS_TPA_TPA_QUERY_CUH_

#include <algorithm>
#include <cmath>

#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

inline constexpr int kTpaQueryThreads = 128;

// Arguments of LaunchTpaQueries' and LaunchTpaAppend's kernels.
struct TpaQueryArgs {
  TpaCudaQueryParams p;
  int octets;   // groups of 8 heads
  float scale;  // D^-1/2, 1/Rq, 1/R and log2(e)
  int shift;    // a block forms 2^shift groups
  int staging;  // bytes of dynamic shared memory

  // Blocks a token.
  int TokenBlocks() const { return (octets + (1 << shift) - 1) >> shift; }
};
// Elements of A_q that a thread stages.
inline constexpr int kTpaQueryOwnHeads = 2;
// tpa_queries.cu. False for what TpaCudaQueryParams' comments rule out.
bool MakeTpaQueryArgs(const TpaCudaQueryParams& params, TpaQueryArgs* args);

// Factors of a query: D^-1/2, 1/Rq, 1/R and log2(e).
inline float TpaQueryScale(const TpaShape& s) {
  const double ranks =
      static_cast<double>(std::max<int64_t>(s.q_rank, 1) * s.kv_rank);
  return static_cast<float>(
      1.4426950408889634 /
      (std::sqrt(static_cast<double>(s.head_dim)) * ranks));
}

// Two elements that rotate together, with their position.
__device__ __forceinline__ float2 TpaRotated(float x1, float x2, float c,
                                             float s) {
  return {__fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s)),
          __fadd_rn(__fmul_rn(x1, s), __fmul_rn(x2, c))};
}

// x += Σ_r a[r · a_stride] · b[r · b_stride + 0..7], ascending. `b` is 16-byte
// aligned.
template <int kUnroll>
__device__ __forceinline__ void TpaCombine(const float* a, int a_stride,
                                           const float* b, int b_stride,
                                           int ranks, float (&x)[8]) {
#pragma unroll kUnroll
  for (int r = 0; r < ranks; ++r) {
    const float factor = a[r * a_stride];
    const auto* row = reinterpret_cast<const float4*>(b + r * b_stride);
    const float4 low = row[0];
    const float4 high = row[1];
    x[0] = __fmaf_rn(factor, low.x, x[0]);
    x[1] = __fmaf_rn(factor, low.y, x[1]);
    x[2] = __fmaf_rn(factor, low.z, x[2]);
    x[3] = __fmaf_rn(factor, low.w, x[3]);
    x[4] = __fmaf_rn(factor, high.x, x[4]);
    x[5] = __fmaf_rn(factor, high.y, x[5]);
    x[6] = __fmaf_rn(factor, high.z, x[6]);
    x[7] = __fmaf_rn(factor, high.w, x[7]);
  }
}

// Features d to d + 7 of the whole query `from`, zero beyond D = `dim`. `cos`
// and `sin` are those of its token.
__device__ __forceinline__ void TpaLoadWholeQuery(const float* from,
                                                  bool rotate, const float* cos,
                                                  const float* sin, int dim,
                                                  int d, float (&x)[8]) {
  const int half = dim / 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int k = d + i;
    if (k >= dim) continue;
    if (!rotate) {
      x[i] = from[k];
      continue;
    }
    const int pair = k < half ? k : k - half;
    const float2 z =
        TpaRotated(from[pair], from[half + pair], cos[pair], sin[pair]);
    x[i] = k < half ? z.x : z.y;
  }
}

// Eight features, scaled, as terms of the cache's type.
template <typename T>
__device__ __forceinline__ void TpaQueryTermsOf(
    const float (&x)[8], float scale, uint4 (&terms)[kTpaQueryTerms]) {
  uint32_t parts[4][kTpaQueryTerms];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    Split<T>(__fmul_rn(x[2 * j], scale), __fmul_rn(x[2 * j + 1], scale),
             parts[j]);
  }
#pragma unroll
  for (int term = 0; term < kTpaQueryTerms; ++term) {
    terms[term] = {parts[0][term], parts[1][term], parts[2][term],
                   parts[3][term]};
  }
}

// `staging` holds B_q [Rq, D] and A_q [Rq, heads]. D is at most 64 kLanePairs:
// a lane has this many pairs of a rank's features. (Prefetching more costs
// instructions, each run once.)
template <typename T, int kLanePairs>
class TpaQueryFormer {
 public:
  __device__ __forceinline__ TpaQueryFormer(const TpaQueryArgs& args,
                                            float* staging)
      : p_(args.p),
        scale_(args.scale),
        octets_(args.octets),
        dim_(static_cast<int>(p_.shape.head_dim)),
        half_(dim_ / 2),
        width_((dim_ + 15) / 16 * 16),
        q_rank_(static_cast<int>(p_.shape.q_rank)),
        num_heads_(static_cast<int>(p_.shape.num_heads)),
        shift_(args.shift),
        rotate_(p_.position == LrpeType::kRotate),
        b_q_(staging),
        a_q_(staging + q_rank_ * width_) {}

  // Forms the `block`th 2^shift groups.
  __device__ __forceinline__ void Form(int64_t token, int block) const {
    const int first = block << shift_;
    if (q_rank_ > 0) {
      Stage(token, first);
      __syncthreads();
    }
    // A thread takes eight features of a head. Half of the threads suffice for
    // a group of few features.
    constexpr int kSharers =
        kLanePairs == 1 ? kTpaQueryThreads / 2 : kTpaQueryThreads;
    const int thread = static_cast<int>(threadIdx.x) % kSharers;
    const int end = min(1 << shift_, octets_ - first);
    for (int group = static_cast<int>(threadIdx.x) / kSharers; group < end;
         group += kTpaQueryThreads / kSharers) {
      for (int i = thread; i < width_; i += kSharers) {
        const int head = 8 * group + i % 8;
        const int d = i / 8 * 8;
        float x[8] = {};
        if (q_rank_ > 0) {
          TpaCombine<4>(a_q_ + head, 8 << shift_, b_q_ + d, width_, q_rank_, x);
        } else if (8 * first + head < num_heads_) {
          TpaLoadWholeQuery(p_.b_q + token * p_.stride +
                                static_cast<int64_t>(8 * first + head) * dim_,
                            rotate_, p_.cos + token * half_,
                            p_.sin + token * half_, dim_, d, x);
        }
        Write(token, first + group, i, x);
      }
    }
  }

 private:
  static constexpr int kWarps = kTpaQueryThreads / 32;
  static constexpr int kLaneRanks = 4;

  // Stages the token's factors, B_q with its position; zero beyond D and for
  // padding heads. A warp takes ranks, four at a time; all its loads are issued
  // together: their latency is most of the cost.
  __device__ __forceinline__ void Stage(int64_t token, int first_octet) const {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const float* b = p_.b_q + token * p_.stride;
    const float* a = p_.a_q + token * p_.stride;
    const int bits = 3 + shift_;  // 2^bits heads
    float y[kTpaQueryOwnHeads];
#pragma unroll
    for (int j = 0; j < kTpaQueryOwnHeads; ++j) {
      const int i = threadIdx.x + j * kTpaQueryThreads;
      const int r = i >> bits;
      const int head = 8 * first_octet + i - (r << bits);
      const bool exists = r < q_rank_ && head < num_heads_;
      y[j] = exists ? a[r * num_heads_ + head] : 0.0f;
    }
    float c[kLanePairs], s[kLanePairs];
#pragma unroll
    for (int j = 0; j < kLanePairs; ++j) {
      const int k = lane + 32 * j;
      const bool exists = rotate_ && k < half_;
      c[j] = exists ? p_.cos[token * half_ + k] : 1.0f;
      s[j] = exists ? p_.sin[token * half_ + k] : 0.0f;
    }
#pragma unroll 1
    for (int first = warp; first < q_rank_; first += kLaneRanks * kWarps) {
      float x1[kLaneRanks][kLanePairs], x2[kLaneRanks][kLanePairs];
#pragma unroll
      for (int i = 0; i < kLaneRanks; ++i) {
        const int r = first + i * kWarps;
#pragma unroll
        for (int j = 0; j < kLanePairs; ++j) {
          const int k = lane + 32 * j;
          const bool exists = r < q_rank_ && k < half_;
          x1[i][j] = exists ? b[r * dim_ + k] : 0.0f;
          x2[i][j] = exists ? b[r * dim_ + half_ + k] : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kLaneRanks; ++i) {
        const int r = first + i * kWarps;
        if (r >= q_rank_) break;
        float* row = b_q_ + r * width_;
#pragma unroll
        for (int j = 0; j < kLanePairs; ++j) {
          const int k = lane + 32 * j;
          if (k >= width_ / 2) break;
          const float2 z = rotate_ ? TpaRotated(x1[i][j], x2[i][j], c[j], s[j])
                                   : float2{x1[i][j], x2[i][j]};
          // Pairs beyond the half fill the rest of the row.
          row[k < half_ ? k : 2 * k] = z.x;
          row[k < half_ ? half_ + k : 2 * k + 1] = z.y;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTpaQueryOwnHeads; ++j) {
      const int i = threadIdx.x + j * kTpaQueryThreads;
      if (i < q_rank_ << bits) a_q_[i] = y[j];
    }
  }

  // The terms of eight features of a head; `i` is that of Form.
  __device__ __forceinline__ void Write(int64_t token, int octet, int i,
                                        const float (&x)[8]) const {
    uint4 terms[kTpaQueryTerms];
    TpaQueryTermsOf<T>(x, scale_, terms);
    uint4* to = static_cast<uint4*>(p_.queries) +
                (token * octets_ + octet) * (kTpaQueryTerms * width_) + i;
#pragma unroll
    for (int term = 0; term < kTpaQueryTerms; ++term)
      to[term * width_] = terms[term];
  }

  const TpaCudaQueryParams& p_;
  const float scale_;
  const int octets_;
  const int dim_;
  const int half_;
  const int width_;
  const int q_rank_;
  const int num_heads_;
  const int shift_;
  const bool rotate_;
  float* const b_q_;
  float* const a_q_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
