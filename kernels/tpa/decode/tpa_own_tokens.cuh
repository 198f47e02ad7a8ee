// Decode that appends: a block forms the queries of its rows, and writes the
// new tokens of the rows that end in it. Both to the bits of LaunchTpaAppend.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_OWN_TOKENS_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_OWN_TOKENS_CUH_

#include <cstddef>

#include "kernels/tpa/append/tpa_append.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"
#include "kernels/tpa/decode/tpa_ring.cuh"
#include "kernels/tpa/tpa_query.cuh"

namespace recurve {

// Short, as all of it is cold: an instruction that a warp runs for the first
// time costs some 6 cycles, and over 2,000 instructions more than these made
// steps slower than a separate append (docs/kernels/tpa_decode.md). So factors
// with an activation, and whole queries, are left to LaunchTpaAppend.
//
// A block has at most 2 kColumns columns; D and E are 64 kTiles.
template <int kColumns>
inline constexpr int kTpaLaneHeads = (kTpaMaxWarpgroups * kColumns + 31) / 32;

// Forms a row's queries in shared memory, by all consumer threads.
template <typename T, int kColumns, int kTiles>
class TpaOwnQueries {
 public:
  static constexpr int kWidth = 64 * kTiles;

  // `staging` holds B_q [Rq, D] and A_q [Rq, heads of the block].
  __device__ __forceinline__ TpaOwnQueries(const TpaDecodeArgs& args,
                                           const TpaQueryCopy& to,
                                           float* staging)
      : args_(args),
        to_(to),
        heads_(8 * args.block_octets()),
        q_rank_(static_cast<int>(args.p.shape.q_rank)),
        b_(staging),
        a_(staging + q_rank_ * kWidth) {}

  // The previous launch is done, and no thread still reads the previous row's
  // queries or the staged factors.
  __device__ __forceinline__ void Form(int row) const {
    Stage(row);
    NamedBarrier(kTpaConsumerBarrier, args_.consumers());
    // A thread takes eight features of a head.
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kWidth * (heads_ / 8);
         i += args_.consumers()) {
      const int octet = i / kWidth;
      const int own = i - octet * kWidth;
      float x[8] = {};
      TpaCombine<2>(a_ + 8 * octet + own % 8, heads_, b_ + own / 8 * 8, kWidth,
                    q_rank_, x);
      uint4 terms[kTpaQueryTerms];
      TpaQueryTermsOf<T>(x, args_.query_scale, terms);
      uint4* to = to_.Octet(octet) + own;
#pragma unroll
      for (int term = 0; term < kTpaQueryTerms; ++term)
        to[term * kWidth] = terms[term];
    }
    BulkCopyFence();
    NamedBarrier(kTpaConsumerBarrier, args_.consumers());
  }

 private:
  // Loads the factors, B_q with its position; zero for padding heads. A warp
  // takes a rank; all its loads are issued together.
  __device__ __forceinline__ void Stage(int row) const {
    constexpr int kHalf = kWidth / 2;
    constexpr int kOwnHeads = kTpaLaneHeads<kColumns>;
    const TpaCudaFactors& f = args_.p.factors;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int num_heads = static_cast<int>(args_.p.shape.num_heads);
    const int first_head = 8 * args_.first_octet();
    const bool rotate = f.position == LrpeType::kRotate;
    const float* b = f.b_q + row * f.query_stride;
    const float* a = f.a_q + row * f.query_stride + first_head;
    const int64_t angle = int64_t{row} * kHalf;
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x) / 32; r < q_rank_;
         r += args_.consumers() / 32) {
      float x1[kTiles], x2[kTiles], c[kTiles], s[kTiles];
      float y[kOwnHeads];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int k = lane + 32 * j;
        x1[j] = b[r * kWidth + k];
        x2[j] = b[r * kWidth + kHalf + k];
        c[j] = rotate ? f.cos[angle + k] : 1.0f;
        s[j] = rotate ? f.sin[angle + k] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kOwnHeads; ++j) {
        const int head = lane + 32 * j;
        const bool exists = head < heads_ && first_head + head < num_heads;
        y[j] = exists ? a[r * num_heads + head] : 0.0f;
      }
      float* to = b_ + r * kWidth;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int k = lane + 32 * j;
        const float2 z = rotate ? TpaRotated(x1[j], x2[j], c[j], s[j])
                                : float2{x1[j], x2[j]};
        to[k] = z.x;
        to[kHalf + k] = z.y;
      }
#pragma unroll
      for (int j = 0; j < kOwnHeads; ++j) {
        const int head = lane + 32 * j;
        if (head < heads_) a_[r * heads_ + head] = y[j];
      }
    }
  }

  const TpaDecodeArgs& args_;
  const TpaQueryCopy& to_;
  const int heads_;
  const int q_rank_;
  float* const b_;
  float* const a_;
};

// The page of the last of a row's `length` tokens.
__device__ __forceinline__ int64_t TpaLastPage(const TpaDecodeArgs& args,
                                               int row, int length) {
  return __ldcg(args.p.cache.page_table + row * args.p.cache.page_table_stride +
                (length - 1) / kTpaPageTokens);
}

// Writes the new token of `row`, of `length` tokens with it: the heads that
// this block reads, and B. (Each block with some of the heads writes B, with
// the same bits: none waits.) A warp takes both A, or both B, of a rank at a
// time, with all loads issued together; this is the `warp`th of `warps`.
template <typename T, int kColumns, int kTiles>
__device__ __forceinline__ void TpaAppendOwn(const TpaDecodeArgs& args, int row,
                                             int length, int warp, int warps) {
  const TpaCudaFactors& f = args.p.factors;
  const int num_heads = static_cast<int>(args.p.shape.num_heads);
  const int kv_rank = static_cast<int>(args.p.shape.kv_rank);
  constexpr int kWidth = 64 * kTiles;
  const int a_planes = kTpaPageTokens * static_cast<int>(args.layout.a_width);
  const int k_block = static_cast<int>(args.layout.k_block);
  const int v_block = static_cast<int>(args.layout.v_block);
  const int first_head = 8 * args.first_head_octet();
  const int heads = 8 * args.head_octet_count();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int m = (length - 1) % kTpaPageTokens;
  const int64_t page = TpaLastPage(args, row, length);
  // This lane's element of the token, in the first plane; the one 32 elements
  // on is four octets on.
  constexpr int kStep = 4 * 8 * kTpaPageTokens;
  T* const keys = static_cast<T*>(args.p.cache.pages) +
                  page * args.p.cache.page_stride +
                  8 * (kTpaPageTokens * (lane / 8) + m) + lane % 8;
  T* const values = keys + args.layout.values;
#pragma unroll 1
  for (int unit = warp; unit < 2 * kv_rank; unit += warps) {
    const int r = unit / 2;
    if (unit % 2 == 0) {
      const int64_t from = row * f.stride + r * num_heads + first_head;
      constexpr int kHeads = kTpaLaneHeads<kColumns>;
      float k[kHeads], v[kHeads];
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        const int head = lane + 32 * j;
        // Padding heads stay zero.
        const bool exists = head < heads && first_head + head < num_heads;
        k[j] = exists ? f.a_k[from + head] : 0.0f;
        v[j] = exists ? f.a_v[from + head] : 0.0f;
      }
      const int to = kTpaPageTokens * first_head;
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        if (lane + 32 * j >= heads) break;
        keys[r * k_block + to + kStep * j] = Half<T>::From(k[j]);
        values[r * v_block + to + kStep * j] = Half<T>::From(v[j]);
      }
      continue;
    }
    const float* const k_from = f.b_k + row * f.stride + r * kWidth;
    const float* const v_from = f.b_v + row * f.stride + r * kWidth;
    float k[2 * kTiles], v[2 * kTiles];
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      k[j] = TpaEncodeKey(f, kWidth, row, k_from, lane + 32 * j);
      v[j] = v_from[lane + 32 * j];
    }
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      keys[r * k_block + a_planes + kStep * j] = Half<T>::From(k[j]);
      values[r * v_block + a_planes + kStep * j] = Half<T>::From(v[j]);
    }
  }
}

// Makes this thread's writes to global memory visible to bulk copies that are
// issued after a following barrier.
__device__ __forceinline__ void TpaWrittenFence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// Writes the new tokens of the rows that end in the block, and tells the
// producer warps. By the warps that do not copy, of which this is the `warp`th;
// `work` is a word for each lane of the block's TpaBlockWork.
template <typename T, int kColumns, int kTiles>
__device__ __forceinline__ void TpaAppendRows(const TpaDecodeArgs& args,
                                              int warp, int work) {
  const int warps = args.append_warps();
  const int first_row = TpaShareWord(work, offsetof(TpaBlockWork, first_row));
  const int last_row = TpaShareWord(work, offsetof(TpaBlockWork, last_row));
  const int first_chunk =
      TpaShareWord(work, offsetof(TpaBlockWork, first_chunk));
  const int last_chunk = TpaShareWord(work, offsetof(TpaBlockWork, last_chunk));
  const int first_length =
      TpaShareWord(work, offsetof(TpaBlockWork, first.length));
  WaitForPrevious();
#pragma unroll 1
  for (int row = first_row; row <= last_row && row < args.p.rows; ++row) {
    if (row == last_row && last_chunk == 0) break;
    const int length =
        row == first_row ? first_length : __ldcg(&args.row_work(row).length);
    const int chunks = TpaChunkCount(length);
    const int begin = row == first_row ? first_chunk : 0;
    if (begin < chunks && (row < last_row || last_chunk == chunks))
      TpaAppendOwn<T, kColumns, kTiles>(args, row, length, warp, warps);
  }
  TpaWrittenFence();
#pragma unroll 1
  for (int lane = 0; lane < args.lanes; ++lane)
    NamedBarrierArrive(kTpaAppendBarrier + lane, args.append_threads());
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_OWN_TOKENS_CUH_
