// Forming the queries of a row in a thread block.
#ifndef RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
#define RECURVE_KERNELS_TPA_TPA_QUERY_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/tpa_decode.cuh"

namespace recurve {

// Two elements of a query that rotate together, with their position.
__device__ __forceinline__ float2 Rotated(float x1, float x2, float c,
                                          float s) {
  return {__fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s)),
          __fadd_rn(__fmul_rn(x1, s), __fmul_rn(x2, c))};
}

// Forms q of the block's columns for one row:
//
//   q[h] = (1/Rq) Σ_r A_q[r, h] · B_q[r]    (or whole queries where Rq is 0)
//
// with its position, times all that scales a score: D^-1/2, the 1/R of the
// keys, and log2(e), since weights are powers of two. Taken apart into terms of
// the cache's type; each warpgroup has a plane [D / 8, kTerms · kColumns, 8],
// one after the other in `terms`. `staging` has room for B_q [Rq, D] and
// A_q [Rq, columns of the block].
template <typename T, int kColumns>
class QueryFormer {
 public:
  static constexpr int kTerms = Half<T>::kTerms;

  __device__ __forceinline__ QueryFormer(const TpaDecodeArgs& args, char* terms,
                                         float* staging)
      : args_(args),
        terms_(terms),
        dim_(static_cast<int>(args.p.shape.head_dim)),
        width_(static_cast<int>(args.layout.b_k_width)),
        q_rank_(static_cast<int>(args.p.shape.q_rank)),
        num_heads_(static_cast<int>(args.p.shape.num_heads)),
        columns_(8 * args.groups * args.group_octets),
        b_q_(staging),
        a_q_(staging + q_rank_ * width_) {}

  // Begins and ends with a barrier of all threads that compute.
  __device__ __forceinline__ void Form(int row) {
    const int threads = args_.consumers();
    NamedBarrier(kTpaConsumerBarrier, threads);  // the memory is free
    const int first_octet = args_.first_octet();
    const int last_octet = first_octet + args_.block_octets() - 1;
    const int last_t = last_octet / args_.head_octets;
#pragma unroll 1
    for (int t = first_octet / args_.head_octets; t <= last_t; ++t) {
      const int64_t query = int64_t{row} * args_.p.new_tokens + t;
      if (q_rank_ > 0) {
        Stage(query, t, threads);
        NamedBarrier(kTpaConsumerBarrier, threads);
      }
      Combine(query, t, threads);
      BulkCopyFence();  // tensor cores read what ordinary writes wrote
      NamedBarrier(kTpaConsumerBarrier, threads);
    }
  }

 private:
  static constexpr int kBatch = 4;  // loads in flight of each factor

  // Column `c` of the block: its new token and head; head -1: none.
  __device__ __forceinline__ int2 TokenAndHead(int c) const {
    const int octet = args_.first_octet() + c / 8;
    const int head = octet % args_.head_octets * 8 + c % 8;
    if (octet >= args_.octets || head >= num_heads_) return {-1, -1};
    return {octet / args_.head_octets, head};
  }

  // The factors of one new token's queries, B_q with its position, into shared
  // memory; zero beyond D and for heads that do not exist. The loads of all
  // go out together: their latency is all there is to this.
  __device__ __forceinline__ void Stage(int64_t query, int t, int threads) {
    const TpaCudaDecodeParams& p = args_.p;
    const int half = dim_ / 2;
    const int pairs = width_ / 2;
    const float* b = p.b_q + query * p.stride;
    const float* a = p.a_q + query * p.stride;
    const float* cos = p.cos + query * half;
    const float* sin = p.sin + query * half;
    const bool rotate = p.position == LrpeType::kRotate;
    const int b_count = q_rank_ * pairs;
    const int a_count = q_rank_ * columns_;
    const int count = max(b_count, a_count);
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += kBatch * threads) {
      float x1[kBatch], x2[kBatch], c[kBatch], s[kBatch], y[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * threads;
        const int k = i % pairs;
        const bool exists = i < b_count && k < half;
        const float* row = b + i / pairs * dim_;
        x1[j] = exists ? row[k] : 0.0f;
        x2[j] = exists ? row[half + k] : 0.0f;
        c[j] = exists && rotate ? cos[k] : 1.0f;
        s[j] = exists && rotate ? sin[k] : 0.0f;
        const int2 column = TokenAndHead(i % columns_);
        y[j] = i < a_count && column.x == t
                   ? a[i / columns_ * num_heads_ + column.y]
                   : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * threads;
        if (i < a_count) a_q_[i] = y[j];
        if (i >= b_count) continue;
        const int k = i % pairs;
        const float2 z =
            rotate ? Rotated(x1[j], x2[j], c[j], s[j]) : float2{x1[j], x2[j]};
        float* row = b_q_ + i / pairs * width_;
        // Pairs beyond the half fill what is left of the row.
        row[k < half ? k : 2 * k] = z.x;
        row[k < half ? half + k : 2 * k + 1] = z.y;
      }
    }
  }

  // Eight features of a whole query.
  __device__ __forceinline__ void LoadWhole(int64_t query, int head, int d,
                                            float (&x)[8]) const {
    const TpaCudaDecodeParams& p = args_.p;
    const int half = dim_ / 2;
    const float* row =
        p.b_q + query * p.stride + static_cast<int64_t>(head) * dim_;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int k = d + i;
      x[i] = k < dim_ ? row[k] : 0.0f;
      if (k >= dim_ || p.position != LrpeType::kRotate) continue;
      const int pair = k < half ? k : k - half;
      const float2 y =
          Rotated(row[pair], row[half + pair], p.cos[query * half + pair],
                  p.sin[query * half + pair]);
      x[i] = k < half ? y.x : y.y;
    }
  }

  // The columns of one new token, eight features of a column at a time.
  __device__ __forceinline__ void Combine(int64_t query, int t, int threads) {
    const int group_columns = 8 * args_.group_octets;
    const float rank = static_cast<float>(q_rank_ > 0 ? q_rank_ : 1);
    const float scale =
        1.4426950408889634f / (sqrtf(static_cast<float>(dim_)) * rank *
                               static_cast<float>(args_.p.shape.kv_rank));
#pragma unroll 1
    for (int i = threadIdx.x; i < columns_ * (width_ / 8); i += threads) {
      const int column = i % columns_;
      const int d = i / columns_ * 8;
      const int2 who = TokenAndHead(column);
      // Columns without a head are zero, written with the first token's.
      if (who.x != t && who.x >= 0) continue;
      float sum[8] = {};
      if (who.x >= 0 && q_rank_ == 0) {
        LoadWhole(query, who.y, d, sum);
      } else if (who.x >= 0) {
#pragma unroll 4
        for (int r = 0; r < q_rank_; ++r) {
          const float a = a_q_[r * columns_ + column];
          const float4 low =
              *reinterpret_cast<const float4*>(b_q_ + r * width_ + d);
          const float4 high =
              *reinterpret_cast<const float4*>(b_q_ + r * width_ + d + 4);
          sum[0] += a * low.x;
          sum[1] += a * low.y;
          sum[2] += a * low.z;
          sum[3] += a * low.w;
          sum[4] += a * high.x;
          sum[5] += a * high.y;
          sum[6] += a * high.z;
          sum[7] += a * high.w;
        }
      }
      uint32_t parts[4][kTerms];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Split<T>(sum[2 * k] * scale, sum[2 * k + 1] * scale, parts[k]);
      }
      const int group = column / group_columns;
      char* to =
          terms_ + 16 * ((group * (width_ / 8) + d / 8) * (kTerms * kColumns) +
                         column % group_columns);
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        *reinterpret_cast<uint4*>(to + 16 * kColumns * term) = {
            parts[0][term], parts[1][term], parts[2][term], parts[3][term]};
      }
    }
  }

  const TpaDecodeArgs& args_;
  char* const terms_;
  const int dim_;
  const int width_;
  const int q_rank_;
  const int num_heads_;
  const int columns_;
  float* const b_q_;
  float* const a_q_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_QUERY_CUH_
