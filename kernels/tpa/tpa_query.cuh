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

  // Begins and ends with a barrier of all threads that compute. `first` of the
  // block: lets the copying warps begin once all that this waits for has been
  // asked for. What they ask for would fill the memory's queues for
  // microseconds.
  __device__ __forceinline__ void Form(int row, bool first) {
    const int threads = args_.consumers();
    NamedBarrier(kTpaConsumerBarrier, threads);  // the memory is free
    const int first_octet = args_.first_octet();
    const int last_octet = first_octet + args_.block_octets() - 1;
    const int last_t = last_octet / args_.head_octets;
    if (first && q_rank_ == 0) ReleaseCopies();
#pragma unroll 1
    for (int t = first_octet / args_.head_octets; t <= last_t; ++t) {
      const int64_t query = int64_t{row} * args_.p.new_tokens + t;
      if (q_rank_ > 0) {
        Stage(query, t, threads, first);
        NamedBarrier(kTpaConsumerBarrier, threads);
      }
      first = false;
      Combine(query, t, threads);
      BulkCopyFence();  // tensor cores read what ordinary writes wrote
      NamedBarrier(kTpaConsumerBarrier, threads);
    }
  }

  // Brings a row's factors near, for when it is its turn.
  __device__ __forceinline__ void Prefetch(int row) const {
    const TpaCudaDecodeParams& p = args_.p;
    const int b_rows = q_rank_ > 0 ? q_rank_ : num_heads_;
#pragma unroll 1
    for (int t = 0; t < p.new_tokens; ++t) {
      const int64_t query = int64_t{row} * p.new_tokens + t;
      PrefetchRun(p.a_q + query * p.stride, q_rank_ * num_heads_);
      PrefetchRun(p.b_q + query * p.stride, b_rows * dim_);
      if (p.position == LrpeType::kRotate) {
        PrefetchRun(p.cos + query * (dim_ / 2), dim_ / 2);
        PrefetchRun(p.sin + query * (dim_ / 2), dim_ / 2);
      }
    }
  }

 private:
  // Columns and pairs of features that a lane may have to load of one rank.
  static constexpr int kLaneColumns = (kTpaMaxWarpgroups * kColumns + 31) / 32;
  static constexpr int kLanePairs = kColumns == 32 ? 4 : 2;

  // Column `c` of the block: its new token and head; head -1: none.
  __device__ __forceinline__ int2 TokenAndHead(int c) const {
    const int octet = args_.first_octet() + c / 8;
    if (c >= columns_ || octet >= args_.octets) return {-1, -1};
    int t = 0;
    int head = 8 * octet + c % 8;
    if (args_.p.new_tokens > 1) {
      t = octet / args_.head_octets;
      head -= 8 * t * args_.head_octets;
    }
    return head < num_heads_ ? int2{t, head} : int2{-1, -1};
  }

  __device__ __forceinline__ void PrefetchRun(const float* from,
                                              int count) const {
#pragma unroll 1
    for (int i = 32 * static_cast<int>(threadIdx.x); i < count;
         i += 32 * args_.consumers()) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
    }
  }

  __device__ __forceinline__ void ReleaseCopies() const {
#pragma unroll 1
    for (int lane = 0; lane < args_.lanes; ++lane) {
      NamedBarrierArrive(kTpaQueryBarrier + lane, args_.consumers() + 32);
    }
  }

  // The factors of one new token's queries, B_q with its position, into shared
  // memory; zero beyond D and for heads that do not exist. A warp takes ranks,
  // two at a time; all its loads go out together: their latency is all there is
  // to this.
  __device__ __forceinline__ void Stage(int64_t query, int t, int threads,
                                        bool first) {
    const TpaCudaDecodeParams& p = args_.p;
    const int lane = threadIdx.x % 32;
    const int half = dim_ / 2;
    const int pairs = width_ / 2;
    const float* b = p.b_q + query * p.stride;
    const float* a = p.a_q + query * p.stride;
    const bool rotate = p.position == LrpeType::kRotate;
    float c[kLanePairs], s[kLanePairs];
#pragma unroll
    for (int j = 0; j < kLanePairs; ++j) {
      const int k = lane + 32 * j;
      const bool exists = rotate && k < half;
      c[j] = exists ? p.cos[query * half + k] : 1.0f;
      s[j] = exists ? p.sin[query * half + k] : 0.0f;
    }
    int head[kLaneColumns];
#pragma unroll
    for (int j = 0; j < kLaneColumns; ++j) {
      const int2 who = TokenAndHead(lane + 32 * j);
      head[j] = who.x == t ? who.y : -1;
    }
    const int warps = threads / 32;
#pragma unroll 1
    for (int base = 0; base < q_rank_; base += 2 * warps) {
      const int r0 = base + static_cast<int>(threadIdx.x) / 32;
      float x1[2][kLanePairs], x2[2][kLanePairs], y[2][kLaneColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = r0 + i * warps;
        const bool exists = r < q_rank_;
#pragma unroll
        for (int j = 0; j < kLanePairs; ++j) {
          const int k = lane + 32 * j;
          x1[i][j] = exists && k < half ? b[r * dim_ + k] : 0.0f;
          x2[i][j] = exists && k < half ? b[r * dim_ + half + k] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) {
          y[i][j] = exists && head[j] >= 0 ? a[r * num_heads_ + head[j]] : 0.0f;
        }
      }
      if (first && base == 0) ReleaseCopies();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = r0 + i * warps;
        if (r >= q_rank_) break;
#pragma unroll
        for (int j = 0; j < kLanePairs; ++j) {
          const int k = lane + 32 * j;
          if (k >= pairs) break;
          const float2 z = rotate ? Rotated(x1[i][j], x2[i][j], c[j], s[j])
                                  : float2{x1[i][j], x2[i][j]};
          float* row = b_q_ + r * width_;
          // Pairs beyond the half fill what is left of the row.
          row[k < half ? k : 2 * k] = z.x;
          row[k < half ? half + k : 2 * k + 1] = z.y;
        }
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) {
          const int column = lane + 32 * j;
          if (column < columns_) a_q_[r * columns_ + column] = y[i][j];
        }
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
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const int k = d + i;
      float value = k < dim_ ? row[k] : 0.0f;
      if (k < dim_ && p.position == LrpeType::kRotate) {
        const int pair = k < half ? k : k - half;
        const float2 y =
            Rotated(row[pair], row[half + pair], p.cos[query * half + pair],
                    p.sin[query * half + pair]);
        value = k < half ? y.x : y.y;
      }
      // No run-time index into registers.
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = i == j ? value : x[j];
    }
  }

  // The columns of one new token: a thread takes two neighbours and eight
  // features.
  __device__ __forceinline__ void Combine(int64_t query, int t, int threads) {
    constexpr int kPairs = kColumns / 2;
    const int group_columns = 8 * args_.group_octets;
    const int octets = width_ / 8;
    // Of all columns of the planes: those that nobody uses are zero.
    const int second = args_.groups - 1;  // whether there are two groups
#pragma unroll 1
    for (int i = threadIdx.x; i < (octets * kPairs) << second; i += threads) {
      const int place = i / kPairs;
      const int group_column = 2 * (i - place * kPairs);
      const int group = place & second;
      const int octet = place >> second;
      const bool used = group_column < group_columns;
      const int column = group * group_columns + group_column;
      if (args_.p.new_tokens > 1 && used) {
        const int column_octet = args_.first_octet() + column / 8;
        if (column_octet < args_.octets &&
            column_octet / args_.head_octets != t)
          continue;
      }
      float sum[2][8] = {};
      if (used && q_rank_ > 0) {
#pragma unroll 4
        for (int r = 0; r < q_rank_; ++r) {
          const float2 a =
              *reinterpret_cast<const float2*>(a_q_ + r * columns_ + column);
          const float4* b =
              reinterpret_cast<const float4*>(b_q_ + r * width_ + 8 * octet);
          const float4 low = b[0];
          const float4 high = b[1];
          AddProducts(sum[0], a.x, low, high);
          AddProducts(sum[1], a.y, low, high);
        }
      } else if (used) {
#pragma unroll 1
        for (int k = 0; k < 2; ++k) {
          const int2 who = TokenAndHead(column + k);
          float whole[8] = {};
          if (who.x == t) LoadWhole(query, who.y, 8 * octet, whole);
            // No run-time index into registers.
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            sum[j / 8][j % 8] = j / 8 == k ? whole[j % 8] : sum[j / 8][j % 8];
          }
        }
      }
      char* to = terms_ + 16 * ((group * octets + octet) * (kTerms * kColumns) +
                                group_column);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t parts[4][kTerms];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Split<T>(sum[k][2 * j] * args_.score_scale,
                   sum[k][2 * j + 1] * args_.score_scale, parts[j]);
        }
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          *reinterpret_cast<uint4*>(to + 16 * (kColumns * term + k)) = {
              parts[0][term], parts[1][term], parts[2][term], parts[3][term]};
        }
      }
    }
  }
  __device__ __forceinline__ static void AddProducts(float (&sum)[8], float a,
                                                     const float4& low,
                                                     const float4& high) {
    sum[0] += a * low.x;
    sum[1] += a * low.y;
    sum[2] += a * low.z;
    sum[3] += a * low.w;
    sum[4] += a * high.x;
    sum[5] += a * high.y;
    sum[6] += a * high.z;
    sum[7] += a * high.w;
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
