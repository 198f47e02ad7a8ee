// Second half of the gated delta rule over prompts: the state goes through the
// chunks of a row, a block for 64 of its columns. Two warpgroups keep 64 rows
// each as accumulators; a chunk is two steps: Δ = U − W S (by the first) and
// q S (by the second), then the state's update and scores · Δ. Factors arrive
// by bulk copies.
// Shapes: images and U of gated_delta_prefill_plan.h; out [T, Hv, E]; states
// [slots, Hv, D, E] float32.
// Floor: 4 · 64 · 128 · E + 64² · E multiply-adds a chunk and head (times three
// with two terms), 65 KB of images and U a block.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_CHUNKS_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_CHUNKS_CUH_

#include "kernels/common/wgmma.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_tiles.cuh"

namespace recurve {
namespace gated_delta {

constexpr int kChunksThreads = 256;
// A term of each, in pieces as images are.
constexpr int kStateBytes = kDeltaPrefillDim * kDeltaColumns * 2;
constexpr int kDeltaBytes = kDeltaChunk * kDeltaColumns * 2;

// Chunks in flight.
template <int kTerms>
RECURVE_HOST_DEVICE constexpr int Stages() {
  return kTerms == 1 ? 3 : 1;
}
template <int kTerms>
RECURVE_HOST_DEVICE constexpr int StageBytes() {
  return DeltaImageBytes(kTerms) + DeltaValueTileBytes(kTerms);
}
template <int kTerms>
constexpr int ChunksSharedBytes() {
  return Stages<kTerms>() * StageBytes<kTerms>() +
         kTerms * (kStateBytes + kDeltaBytes);
}

// Accumulators of 64 rows by 64 columns, in wgmma's layout: a thread has, of 8
// columns each, two of two rows that are 8 apart.
using Square = float[32];

// Rows of x as terms of a tile of `kRows`; `row` is the thread's first.
template <int kTerms, int kRows>
__device__ __forceinline__ void StoreTile(const Square& x, char* tile,
                                          int row) {
  char* const to = tile + row * 16 + threadIdx.x % 4 * 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t terms[kTerms];
      ToTerms(x[4 * n + 2 * half], x[4 * n + 2 * half + 1], terms);
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        *reinterpret_cast<uint32_t*>(to + t * kRows * kDeltaColumns * 2 +
                                     n * kRows * 16 + half * 128) = terms[t];
      }
    }
  }
}

// U as the plan has it.
template <int kTerms>
__device__ __forceinline__ void LoadValues(const char* values, Square& x) {
  const uint4* const from =
      reinterpret_cast<const uint4*>(values) + threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 4 * kTerms; ++i) {
    const uint4 four = from[128 * i];
    const uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (kTerms == 1) {
        x[8 * i + 2 * w] = Bf16::Low(words[w]);
        x[8 * i + 2 * w + 1] = Bf16::High(words[w]);
      } else {
        x[4 * i + w] = __uint_as_float(words[w]);
      }
    }
  }
}

// A factor in shared memory; terms and steps of 16 of the inner dimension are
// the members' bytes apart.
struct Factor {
  uint64_t operand;
  uint32_t term, step;
};
// By rows: the inner dimension runs along a row of a tile of kRows; by columns:
// it is the tile's rows.
template <int kRows>
__device__ __forceinline__ Factor ByRows(uint32_t tile, uint32_t term) {
  return {WgmmaUniform(WgmmaOperand(tile, kRows * 16, 128)), term, kRows * 32};
}
template <int kRows>
__device__ __forceinline__ Factor ByColumns(uint32_t tile, uint32_t term) {
  return {WgmmaUniform(WgmmaOperand(tile, 128, kRows * 16)), term, 256};
}

// d = (add ? d : 0) + a b; the product of two low terms is left out.
template <int kTerms, int kSteps, int kMajorA>
__device__ __forceinline__ void MultiplySquare(Square& d, const Factor& a,
                                               const Factor& b, bool add) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t left = WgmmaAdvance(a.operand, a.step * step);
    const uint64_t right = WgmmaAdvance(b.operand, b.step * step);
    if constexpr (kTerms == 2) {
      Wgmma<kMajorA, kMajorMN>(d, left, WgmmaAdvance(right, b.term),
                               add || step > 0, __nv_bfloat16());
      Wgmma<kMajorA, kMajorMN>(d, WgmmaAdvance(left, a.term), right, true,
                               __nv_bfloat16());
    }
    Wgmma<kMajorA, kMajorMN>(d, left, right, add || step > 0 || kTerms == 2,
                             __nv_bfloat16());
  }
}

// Where a thread's accumulators are in 64 columns of a head.
struct Columns {
  __device__ Columns(int split, int width)
      : first(split * kDeltaColumns), width(width) {}
  // Whether columns 8 n to 8 n + 7 exist.
  __device__ bool Has(int n) const { return first + 8 * n < width; }
  int first, width;
};

// A row of the thread's accumulators, `half` its second one. By whole warps.
__device__ __forceinline__ void WriteOut(const GatedDeltaParams& p, int64_t row,
                                         bool exists, int head,
                                         const Columns& columns,
                                         const Square& x, int half) {
  const int lane = threadIdx.x % 4;
  const int64_t at =
      row * p.out_stride + int64_t{head} * columns.width + columns.first;
  if (p.out_type == ElementType::kFloat32) {
    float* const to = static_cast<float*>(p.out) + at + 2 * lane;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!exists || !columns.Has(n)) continue;
      *reinterpret_cast<float2*>(to + 8 * n) =
          make_float2(x[4 * n + 2 * half], x[4 * n + 2 * half + 1]);
    }
    return;
  }
  // Neighbours swap, so that each stores 8 bytes.
  const int odd = lane % 2;
  __nv_bfloat16* const to =
      static_cast<__nv_bfloat16*>(p.out) + at + 8 * odd + 2 * (lane - odd);
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const int i = 4 * n + 2 * half;
    const uint32_t low = Bf16::Pack(x[i], x[i + 1]);
    const uint32_t high = Bf16::Pack(x[i + 4], x[i + 5]);
    const uint32_t other =
        __shfl_xor_sync(0xffffffffu, odd != 0 ? low : high, 1);
    if (!exists || !columns.Has(n + odd)) continue;
    *reinterpret_cast<uint2*>(to + 8 * n) =
        odd != 0 ? make_uint2(other, high) : make_uint2(low, other);
  }
}

// Chunks of the rows before this one. By all threads.
__device__ __forceinline__ int ChunksBefore(const Round& round, int row) {
  int sum = 0;
  for (int b = threadIdx.x % 32; b < row; b += 32) sum += RowChunks(round, b);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  return sum;
}

// Grid: (runs of 64 columns, value heads, rows).
template <int kTerms>
__global__ void __launch_bounds__(kChunksThreads, 1)
    delta_chunks_kernel(const __grid_constant__ Round round) {
  LaunchDependents();
  constexpr int kStages = Stages<kTerms>();
  constexpr int kStage = StageBytes<kTerms>();
  constexpr int kImage = DeltaImageBytes(kTerms);
  constexpr int kValues = DeltaValueTileBytes(kTerms);
  extern __shared__ __align__(128) char delta_memory[];
  __shared__ __align__(8) uint64_t arrived[kStages];
  char* const state_tile = delta_memory + kStages * kStage;
  char* const delta_tile = state_tile + kTerms * kStateBytes;
  const GatedDeltaParams& p = round.p.of;
  const int warp = Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  const int group = warp / 4;
  const int token = 16 * (warp % 4) + lane / 4;  // the thread's first row of 64
  const int split = blockIdx.x;
  const int head = blockIdx.y;
  const int row = blockIdx.z;
  const Columns columns(split, static_cast<int>(p.value_dim));
  WaitForPrevious();
  if (row >= LiveRows(round)) return;
  const int chunks = RowChunks(round, row);
  if (chunks == 0) return;
  const Span span = SpanOf(round, row);
  const int64_t slot = p.slots[row];
  // Outputs of a chunk, by a warpgroup.
  const auto write = [&](int c, const Square& x) {
    const ChunkPlace place = PlaceOf(round, span, c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = token + 8 * half;
      WriteOut(p, int64_t{place.token} + i, i < place.count, head, columns, x,
               half);
    }
  };
  if (slot == 0) {
    const Square zero = {};
    for (int c = group; c < chunks; c += 2) write(c, zero);
    return;
  }
  const int64_t item = ChunksBefore(round, row);
  const int64_t heads = p.value_heads;
  const char* const images = round.images + (item * heads + head) * kImage;
  const int64_t value_bytes = DeltaValueBytes(p.value_dim, kTerms);
  const char* const values =
      round.values + (item * heads + head) * value_bytes + split * kValues;
  const auto copy = [&](int c) {
    const uint32_t barrier = SharedAddress(&arrived[c % kStages]);
    const uint32_t to = SharedAddress(delta_memory + c % kStages * kStage);
    BarrierExpect(barrier, kStage);
    BulkCopy(to, images + int64_t{c} * heads * kImage, kImage, barrier);
    BulkCopy(to + kImage, values + c * heads * value_bytes, kValues, barrier);
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      BarrierInit(SharedAddress(&arrived[stage]), 1);
    }
    BarrierInitFence();
    for (int c = 0; c < kStages && c < chunks; ++c) copy(c);
  }

  float* const state = p.states + slot * p.slot_stride +
                       int64_t{head} * p.head_dim * p.value_dim +
                       columns.first + 2 * (lane % 4);
  const bool fresh =
      round.p.fresh != nullptr && round.p.fresh[row] != 0 && !round.resumes;
  Square s = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 64 * group + token + 8 * half;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (fresh || r >= p.head_dim || !columns.Has(n)) continue;
      const float2 two =
          *reinterpret_cast<const float2*>(state + r * p.value_dim + 8 * n);
      s[4 * n + 2 * half] = two.x;
      s[4 * n + 2 * half + 1] = two.y;
    }
  }

  const Factor states =
      ByColumns<kDeltaPrefillDim>(SharedAddress(state_tile), kStateBytes);
  const Factor deltas =
      ByColumns<kDeltaChunk>(SharedAddress(delta_tile), kDeltaBytes);
  Square out = {};  // of group 0: Δ
  Square done;      // of group 1: the previous chunk's outputs
  for (int c = 0; c < chunks; ++c) {
    const int stage = c % kStages;
    const char* const image = delta_memory + stage * kStage;
    const uint32_t at = SharedAddress(image);
    StoreTile<kTerms, kDeltaPrefillDim>(s, state_tile, 64 * group + token);
    BulkCopyFence();
    __syncthreads();
    // All have done with the previous chunk's image.
    if (threadIdx.x == 0 && c > 0 && c - 1 + kStages < chunks) {
      copy(c - 1 + kStages);
    }
    BarrierWait(SharedAddress(&arrived[stage]), c / kStages % 2);
    if (group == 0) LoadValues<kTerms>(image + kImage, out);
    const Factor left =
        ByRows<kDeltaChunk>(at + DeltaTileAt(kTerms, group), kDeltaTileBytes);
    const Factor keys = ByColumns<kDeltaChunk>(
        at + DeltaTileAt(kTerms, 2) + group * kDeltaTileBytes / 2,
        kDeltaTileBytes);
    const Factor scores =
        ByRows<kDeltaChunk>(at + DeltaTileAt(kTerms, 3), kDeltaScoreBytes);
    WgmmaPin(out);
    WgmmaFence();
    MultiplySquare<kTerms, kDeltaPrefillDim / 16, kMajorK>(out, left, states,
                                                           group == 0);
    WgmmaCommit();
    const float* const decay =
        reinterpret_cast<const float*>(image + DeltaDecayAt(kTerms)) +
        64 * group + token;
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] *= decay[i / 2 % 2 * 8];
    if (group == 1 && c > 0) write(c - 1, done);
    WgmmaWait<0>();
    WgmmaPin(out);
    if (group == 0) {
      StoreTile<kTerms, kDeltaChunk>(out, delta_tile, token);
      BulkCopyFence();
    }
    __syncthreads();
    WgmmaPin(s);
    WgmmaPin(out);
    WgmmaFence();
    MultiplySquare<kTerms, kDeltaChunk / 16, kMajorMN>(s, keys, deltas, true);
    if (group == 1) {
      WgmmaFence();
      MultiplySquare<kTerms, kDeltaChunk / 16, kMajorK>(out, scores, deltas,
                                                        true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaPin(s);
    WgmmaPin(out);
#pragma unroll
    for (int i = 0; i < 32; ++i) done[i] = out[i];
  }
  if (group == 1) write(chunks - 1, done);

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 64 * group + token + 8 * half;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (r >= p.head_dim || !columns.Has(n)) continue;
      *reinterpret_cast<float2*>(state + r * p.value_dim + 8 * n) =
          make_float2(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]);
    }
  }
}

}  // namespace gated_delta
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_CHUNKS_CUH_
