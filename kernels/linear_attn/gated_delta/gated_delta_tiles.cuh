// Tiles of the gated delta rule over prompts, their fragments, and which chunk
// a block has. Device code only.
//
// While a chunk is prepared, a tile of bfloat16 keeps 16-byte piece p of row r
// at p ^ (r % 8), so that eight rows' pieces have no bank conflict. Images
// (gated_delta_prefill_plan.h) have their pieces one after another.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_TILES_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_TILES_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_cuda.h"

namespace recurve {
namespace gated_delta {

using Bf16 = Half<__nv_bfloat16>;

// Byte of a piece in rows of `kRowBytes`, 256 or 128.
template <int kRowBytes>
__device__ __forceinline__ uint32_t PieceAt(int row, int piece) {
  return row * kRowBytes + ((piece ^ (row & 7)) << 4);
}

// ---- fragments of 16 by 16, from row r and column c on; `tile` is the address
// of a swizzled tile ----

// Left factor, whose rows are the tile's.
template <int kRowBytes>
__device__ __forceinline__ void LeftRows(uint32_t (&a)[4], uint32_t tile, int r,
                                         int c) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(a, tile + PieceAt<kRowBytes>(r + lane % 16, c / 8 + lane / 16));
}
// Right factor, whose columns are the tile's rows: two blocks of 8, b0 and
// b1 of the first, then of the second.
template <int kRowBytes>
__device__ __forceinline__ void RightRows(uint32_t (&b)[4], uint32_t tile,
                                          int r, int c) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(b, tile + PieceAt<kRowBytes>(r + lane % 8 + lane / 16 * 8,
                                            c / 8 + lane / 8 % 2));
}
// c += a b, of factors in terms; the product of two low ones is left out.
template <int kTerms>
__device__ __forceinline__ void MultiplyTerms(float (&c)[4],
                                              const uint32_t (&a)[kTerms][4],
                                              const uint32_t (&b)[kTerms][4],
                                              int half) {
  if constexpr (kTerms == 2) {
    Bf16::Mma(c, a[0], b[1][2 * half], b[1][2 * half + 1]);
    Bf16::Mma(c, a[1], b[0][2 * half], b[0][2 * half + 1]);
  }
  Bf16::Mma(c, a[0], b[0][2 * half], b[0][2 * half + 1]);
}

// Two neighbours as terms.
template <int kTerms>
__device__ __forceinline__ void ToTerms(float low, float high,
                                        uint32_t (&terms)[kTerms]) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    terms[t] = Bf16::Pack(low, high);
    low -= Bf16::Low(terms[t]);
    high -= Bf16::High(terms[t]);
  }
}

// ---- chunks ----

// A launch of one round.
struct Round {
  GatedDeltaPrefillParams p;
  int64_t first;   // of each row's chunks
  int64_t chunks;  // of a row, at most
  bool resumes;    // not the first round: fresh states are in their slots
  char* images;    // [total, Hv] DeltaImageBytes
  char* values;    // [total, Hv] DeltaValueBytes
};

__device__ __forceinline__ int LiveRows(const Round& round) {
  const int rows = static_cast<int>(round.p.of.sequences);
  return round.p.live == nullptr ? rows : min(rows, *round.p.live);
}

// The row's chunks in this round.
__device__ __forceinline__ int RowChunks(const Round& round, int row) {
  const int32_t* const start = round.p.of.query_start + row;
  const int64_t all =
      DeltaChunks(round.p.positions[row], start[1] - start[0]) - round.first;
  return static_cast<int>(max(int64_t{0}, min(all, round.chunks)));
}

// A row's tokens, and how far its first one is into a chunk.
struct Span {
  int begin, end;
  int offset;
};
__device__ __forceinline__ Span SpanOf(const Round& round, int row) {
  return {round.p.of.query_start[row], round.p.of.query_start[row + 1],
          static_cast<int>(round.p.positions[row] % kDeltaChunk)};
}
struct ChunkPlace {
  int token;  // first, in the flattened rows
  int count;
};
__device__ __forceinline__ ChunkPlace PlaceOf(const Round& round,
                                              const Span& span, int chunk) {
  const int at = (static_cast<int>(round.first) + chunk) * kDeltaChunk -
                 span.offset + span.begin;
  const int from = max(span.begin, at);
  return {from, min(span.end, at + kDeltaChunk) - from};
}

// Sums of x[r] over lanes: that of x[l / 4] in lane l.
__device__ __forceinline__ float SumOfRow(float (&x)[8]) {
#pragma unroll
  for (int n = 4; n > 0; n /= 2) {
    const bool upper = (threadIdx.x & (4 * n)) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float other =
          __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + n], 4 * n);
      x[i] = (upper ? x[i + n] : x[i]) + other;
    }
  }
  return LaneSum<4>(x[0]);
}

// The row of the index-th chunk of a round, and the chunk's number there; −1
// if there are fewer. By a whole warp.
__device__ __forceinline__ int2 FindChunk(const Round& round, int index) {
  const int lane = threadIdx.x % 32;
  const int rows = LiveRows(round);
  int before = 0;
  for (int first = 0; first < rows; first += 32) {
    const int own = first + lane < rows ? RowChunks(round, first + lane) : 0;
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned later = __ballot_sync(0xffffffffu, before + sum > index);
    if (later != 0) {
      const int found = __ffs(later) - 1;
      return make_int2(
          first + found,
          index - before - __shfl_sync(0xffffffffu, sum - own, found));
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  return make_int2(-1, 0);
}

}  // namespace gated_delta
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_TILES_CUH_
