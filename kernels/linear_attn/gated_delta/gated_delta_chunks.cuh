// Second half of the gated delta rule over prompts: the state goes through the
// chunks of a row, a block for 32 of its columns. Eight warps keep 16 rows each
// as accumulators; a chunk is two steps: Δ = U − W S and q S, then scores · Δ
// and the state's update. Images of factors arrive by bulk copies.
// Shapes: images and U of gated_delta_prefill_plan.h; out [T, Hv, E]; states
// [slots, Hv, D, E] float32.
// Floor: 4 · 64 · 128 · E + 64² · E multiply-adds a chunk and head (times three
// with two terms), 57 KB of images a block.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_CHUNKS_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_CHUNKS_CUH_

#include "kernels/linear_attn/gated_delta/gated_delta_tiles.cuh"

namespace recurve {
namespace gated_delta {

constexpr int kChunksThreads = 256;
constexpr int kStateBytes = kDeltaPrefillDim * kPitch;  // of a term
constexpr int kDeltaBytes = kDeltaChunk * kPitch;

// Images in flight.
template <int kTerms>
RECURVE_HOST_DEVICE constexpr int Stages() {
  return kTerms == 1 ? 3 : 1;
}
template <int kTerms>
constexpr int ChunksSharedBytes() {
  return Stages<kTerms>() * DeltaImageBytes(kTerms) +
         kTerms * (kStateBytes + kDeltaBytes);
}

// Accumulators of 16 rows by 32 columns.
using Rows = float[4][4];

// x as terms of a tile of kPitch, from row r on.
template <int kTerms>
__device__ __forceinline__ void StoreRows(const Rows& x, char* tile, int bytes,
                                          int r) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t terms[kTerms];
      ToTerms(x[n][2 * half], x[n][2 * half + 1], terms);
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        *reinterpret_cast<uint32_t*>(tile + t * bytes +
                                     (r + lane / 4 + 8 * half) * kPitch +
                                     n * 16 + lane % 4 * 4) = terms[t];
      }
    }
  }
}

// Where a thread's accumulators are in a row of 32 columns of a head.
struct Columns {
  __device__ Columns(int split, int width)
      : first(split * kDeltaColumns + threadIdx.x % 4 * 2), width(width) {}
  // Whether block n exists: both of a pair exist, since the width is even.
  __device__ bool Has(int n) const { return first + 8 * n < width; }
  int first, width;
};

__device__ __forceinline__ void WriteOut(const GatedDeltaParams& p, int64_t row,
                                         int head, const Columns& columns,
                                         int n, float low, float high) {
  if (!columns.Has(n)) return;
  const int64_t at = row * p.out_stride + int64_t{head} * columns.width +
                     columns.first + 8 * n;
  if (p.out_type == ElementType::kFloat32) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) =
        make_float2(low, high);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + at) =
        Bf16::Pack(low, high);
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

// Grid: (runs of 32 columns, value heads, rows).
template <int kTerms>
__global__ void __launch_bounds__(kChunksThreads, 1)
    delta_chunks_kernel(const __grid_constant__ Round round) {
  LaunchDependents();
  constexpr int kStages = Stages<kTerms>();
  constexpr int kImage = DeltaImageBytes(kTerms);
  extern __shared__ __align__(128) char delta_memory[];
  __shared__ __align__(8) uint64_t arrived[kStages];
  char* const state_tile = delta_memory + kStages * kImage;
  char* const delta_tile = state_tile + kTerms * kStateBytes;
  const auto address = [](const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  };
  const GatedDeltaParams& p = round.p.of;
  const int warp = Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
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
  if (slot == 0) {
    for (int c = 0; c < chunks; ++c) {
      const ChunkPlace place = PlaceOf(round, span, c);
      for (int i = 8 * warp + lane / 4; i < place.count; i += 64) {
        for (int n = 0; n < 4; ++n) {
          WriteOut(p, int64_t{place.token} + i, head, columns, n, 0.0f, 0.0f);
        }
      }
    }
    return;
  }
  const int64_t item = ChunksBefore(round, row);
  const int64_t heads = p.value_heads;
  const char* const images = round.images + (item * heads + head) * kImage;
  const int64_t value_floats = DeltaValueBytes(p.value_dim) / 4;
  const float* const values = round.values +
                              (item * heads + head) * value_floats +
                              split * kDeltaChunk * kDeltaColumns;
  const auto copy = [&](int c) {
    const int stage = c % kStages;
    BarrierExpect(address(&arrived[stage]), kImage);
    BulkCopy(address(delta_memory + stage * kImage),
             images + int64_t{c} * heads * kImage, kImage,
             address(&arrived[stage]));
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      BarrierInit(address(&arrived[stage]), 1);
    }
    BarrierInitFence();
    for (int c = 0; c < kStages && c < chunks; ++c) copy(c);
  }

  float* const state = p.states + slot * p.slot_stride +
                       int64_t{head} * p.head_dim * p.value_dim;
  const bool fresh =
      round.p.fresh != nullptr && round.p.fresh[row] != 0 && !round.resumes;
  Rows s = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 16 * warp + lane / 4 + 8 * half;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (fresh || r >= p.head_dim || !columns.Has(n)) continue;
      const float2 two = *reinterpret_cast<const float2*>(
          state + r * p.value_dim + columns.first + 8 * n);
      s[n][2 * half] = two.x;
      s[n][2 * half + 1] = two.y;
    }
  }

  const int m = warp % 4;  // of the chunk's rows, 16 each
  for (int c = 0; c < chunks; ++c) {
    const int stage = c % kStages;
    const char* const image = delta_memory + stage * kImage;
    StoreRows<kTerms>(s, state_tile, kStateBytes, 16 * warp);
    Rows out = {};  // of warps 0 to 3: Δ
    if (warp < 4) {
      const float4* const u = reinterpret_cast<const float4*>(
          values + c * heads * value_floats + m * 512 + lane * 16);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float4 four = __ldcg(u + n);
        out[n][0] = four.x;
        out[n][1] = four.y;
        out[n][2] = four.z;
        out[n][3] = four.w;
      }
    }
    BulkCopyFence();
    __syncthreads();
    // All have done with the previous chunk's image.
    if (threadIdx.x == 0 && c > 0 && c - 1 + kStages < chunks) {
      copy(c - 1 + kStages);
    }
    BarrierWait(address(&arrived[stage]), c / kStages % 2);
    const uint32_t left =
        address(image) + DeltaTileAt(kTerms, warp < 4 ? 0 : 1);
#pragma unroll
    for (int step = 0; step < kDeltaPrefillDim / 16; ++step) {
      uint32_t a[kTerms][4];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        LeftRows<256>(a[t], left + t * kDeltaTileBytes, 16 * m, 16 * step);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t b[kTerms][4];
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          RightColumns(b[t], address(state_tile) + t * kStateBytes, 16 * step,
                       16 * n);
        }
        MultiplyTerms<kTerms>(out[2 * n], a, b, 0);
        MultiplyTerms<kTerms>(out[2 * n + 1], a, b, 1);
      }
    }
    if (warp < 4) StoreRows<kTerms>(out, delta_tile, kDeltaBytes, 16 * m);
    const float* const decay =
        reinterpret_cast<const float*>(image + DeltaDecayAt(kTerms)) +
        16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      s[n][0] *= decay[0];
      s[n][1] *= decay[0];
      s[n][2] *= decay[8];
      s[n][3] *= decay[8];
    }
    __syncthreads();
    const uint32_t keys = address(image) + DeltaTileAt(kTerms, 2);
    const uint32_t scores = address(image) + DeltaTileAt(kTerms, 3);
#pragma unroll
    for (int step = 0; step < kDeltaChunk / 16; ++step) {
      uint32_t a[kTerms][4];
      uint32_t b[2][kTerms][4];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        LeftColumns(a[t], keys + t * kDeltaTileBytes, 16 * step, 16 * warp);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          RightColumns(b[n][t], address(delta_tile) + t * kDeltaBytes,
                       16 * step, 16 * n);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        MultiplyTerms<kTerms>(s[n], a, b[n / 2], n % 2);
      }
      if (warp < 4 || step > m) continue;
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        LeftRows<128>(a[t], scores + t * kDeltaScoreBytes, 16 * m, 16 * step);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        MultiplyTerms<kTerms>(out[n], a, b[n / 2], n % 2);
      }
    }
    if (warp < 4) continue;
    const ChunkPlace place = PlaceOf(round, span, c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * m + lane / 4 + 8 * half;
      if (i >= place.count) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        WriteOut(p, int64_t{place.token} + i, head, columns, n,
                 out[n][2 * half], out[n][2 * half + 1]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = 16 * warp + lane / 4 + 8 * half;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (r >= p.head_dim || !columns.Has(n)) continue;
      *reinterpret_cast<float2*>(state + r * p.value_dim + columns.first +
                                 8 * n) =
          make_float2(s[n][2 * half], s[n][2 * half + 1]);
    }
  }
}

}  // namespace gated_delta
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_CHUNKS_CUH_
