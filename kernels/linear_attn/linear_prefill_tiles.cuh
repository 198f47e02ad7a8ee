// Tiles of q̃, k̃ and ṽ in shared memory: 64 tokens by 64 features of bfloat16,
// in the layout of linear_wgmma.cuh, made from q, k and v in global memory by
// 128 threads. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_PREFILL_TILES_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_PREFILL_TILES_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"
#include "kernels/lrpe/lrpe.h"

namespace recurve {
namespace linear_prefill {

constexpr int kChunk = 64;
constexpr int kGroup = 128;

// One row of the batch: its tokens cut into chunks at multiples of kChunk of
// the absolute position, so that the first may begin and the last may end
// within a chunk.
struct Row {
  __device__ __forceinline__ Row(int64_t first, int tokens, int64_t position)
      : first_token(first),
        count(tokens),
        first_position(position),
        lead(static_cast<int>(position & (kChunk - 1))),
        chunks((lead + tokens + kChunk - 1) / kChunk) {}

  // Chunk c has tokens at its places [Begin(c), End(c)).
  __device__ __forceinline__ int Begin(int c) const {
    return c == 0 ? lead : 0;
  }
  __device__ __forceinline__ int End(int c) const {
    return c == chunks - 1 ? lead + count - c * kChunk : kChunk;
  }
  // The token at place i of chunk c, among all of the launch.
  __device__ __forceinline__ int64_t Token(int c, int i) const {
    return first_token + (c * kChunk + i - lead);
  }
  __device__ __forceinline__ int64_t Position(int c, int i) const {
    return first_position + (c * kChunk + i - lead);
  }

  int64_t first_token;
  int count;
  int64_t first_position;
  int lead;
  int chunks;
};

// Copies `bytes` (16 or 0) of 16 bytes, and zeros the rest.
__device__ __forceinline__ void CopyOrZero16(uint32_t to, const void* from,
                                             int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(bytes)
               : "memory");
}

// Copies 64 features, in two runs of 32, of each token of a chunk. Each thread
// has one piece of every sixteenth token.
struct CopiedTile {
  // x, at this head of the launch's first token: features [first, end) of each
  // run.
  __device__ __forceinline__ void Begin(const __nv_bfloat16* x, int64_t stride,
                                        const int (&first)[2],
                                        const int (&end)[2], const Row& row) {
    const int thread = threadIdx.x % kGroup;
    const int piece = thread % 8;
    const int feature = (piece < 4 ? first[0] : first[1]) + piece % 4 * 8;
    const bool exists = feature < (piece < 4 ? end[0] : end[1]);
    // Missing features read nothing, from a valid address.
    bytes = exists ? 16 : 0;
    step = exists ? 16 * stride : 0;
    somewhere = x;
    from = exists ? x + (row.Token(0, 0) + thread / 8) * stride + feature : x;
  }
  // Copies chunk c, and advances to the next.
  __device__ __forceinline__ void Copy(const Row& row, int c, bool whole,
                                       uint32_t tile) {
    const int thread = threadIdx.x % kGroup;
    const uint32_t to = tile + wgmma::PieceOffset(thread / 8, thread % 8);
    if (whole) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        CopyOrZero16(to + 2048 * m, from, bytes);
        from += step;
      }
    } else {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int i = thread / 8 + 16 * m;
        const bool valid = i >= row.Begin(c) && i < row.End(c);
        CopyOrZero16(to + 2048 * m, valid ? from : somewhere,
                     valid ? bytes : 0);
        from += step;
      }
    }
  }

  const __nv_bfloat16* from;
  const __nv_bfloat16* somewhere;
  int64_t step;
  int bytes;
};

// ---- tiles that are computed ----

// Where a slice's features are in a head of q or k. Local features 0 ... 31 and
// 32 ... 63 are two runs.
struct Slice {
  __device__ __forceinline__ Slice(LrpeType type, int head_dim, int slice)
      : position(type) {
    const int parts = (head_dim + 63) / 64;
    part = type == LrpeType::kCosine ? slice / parts : 0;
    const int block = type == LrpeType::kCosine ? slice % parts : slice;
    if (type == LrpeType::kRotate) {
      first[0] = 32 * block;
      first[1] = head_dim / 2 + 32 * block;
      end[0] = head_dim / 2;
    } else {
      first[0] = 64 * block;
      first[1] = 64 * block + 32;
      end[0] = head_dim;
    }
    end[1] = head_dim;
    encoded = part * head_dim;
  }
  // The feature of the head for local feature f, or -1 if there is none.
  __device__ __forceinline__ int Feature(int f) const {
    const int at = (f < 32 ? first[0] : first[1]) + f % 32;
    return at < (f < 32 ? end[0] : end[1]) ? at : -1;
  }
  // Its row of the state.
  __device__ __forceinline__ int StateRow(int f) const {
    const int at = Feature(f);
    return at < 0 ? -1 : encoded + at;
  }

  LrpeType position;
  int part;  // of cosine: 0 is the cosines, 1 the sines
  int first[2];
  int end[2];
  int encoded;
};

// Eight features of a token from `from`, of which those below `count` exist, a
// multiple of 4.
template <typename IO>
__device__ __forceinline__ void LoadEight(const IO* from, int count,
                                          float (&x)[8]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float four[4] = {};
    if (4 * h < count) Unpack(LoadPack<IO, 4>(from + 4 * h), four);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[4 * h + j] = four[j];
  }
}

// Maximum and 1 / sum of exponentials over n features, n a multiple of 4, by
// four neighbouring lanes.
template <typename IO>
__device__ __forceinline__ float2 SoftmaxStats(const IO* x, int n) {
  float max = -INFINITY;
  for (int i = 4 * (threadIdx.x % 4); i < n; i += 16) {
    float four[4];
    Unpack(LoadPack<IO, 4>(x + i), four);
#pragma unroll
    for (int j = 0; j < 4; ++j) max = fmaxf(max, four[j]);
  }
  max = LaneMax<4>(max);
  float sum = 0.0f;
  for (int i = 4 * (threadIdx.x % 4); i < n; i += 16) {
    float four[4];
    Unpack(LoadPack<IO, 4>(x + i), four);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += expf(four[j] - max);
  }
  return make_float2(max, 1.0f / LaneSum<4>(sum));
}

__device__ __forceinline__ void ActivateEight(Activation activation,
                                              float2 stats, int count,
                                              float (&x)[8]) {
  if (activation == Activation::kNone) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float y = activation == Activation::kSoftmax
                        ? expf(x[j] - stats.x) * stats.y
                        : DeviceActivate(activation, x[j]);
    x[j] = j < count ? y : 0.0f;  // padding: its activation may not be 0
  }
}

__device__ __forceinline__ void StoreEight(uint32_t to, const float (&x)[8]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(Half<__nv_bfloat16>::Pack(x[0], x[1])),
               "r"(Half<__nv_bfloat16>::Pack(x[2], x[3])),
               "r"(Half<__nv_bfloat16>::Pack(x[4], x[5])),
               "r"(Half<__nv_bfloat16>::Pack(x[6], x[7]))
               : "memory");
}

// Recipe of a tile: activation over `dim` features, of which the tile has two
// runs of 32 at first[0] and first[1], up to end[0] and end[1].
struct Recipe {
  Activation activation;
  int dim;
  int first[2];
  int end[2];
};

// The cosine or the sine of a slice of the cosine encoding.
__device__ __forceinline__ float Wave(const Slice& slice, const uint64_t* steps,
                                      int64_t position, int angle) {
  if (angle >= slice.end[0]) return 0.0f;
  float cos;
  float sin;
  PhaseCosSin(steps[angle], position, &cos, &sin);
  return slice.part == 0 ? cos : sin;
}

// Encodes two runs of eight features with local indices f and f + 32.
__device__ __forceinline__ void EncodeEights(const Slice& slice,
                                             const uint64_t* steps,
                                             int64_t position, int f,
                                             float (&x1)[8], float (&x2)[8]) {
  // Unrolled, so that x1 and x2 stay in registers.
  if (slice.position == LrpeType::kRotate) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int angle = slice.first[0] + f + j;
      float cos = 1.0f;
      float sin = 0.0f;
      if (angle < slice.end[0]) PhaseCosSin(steps[angle], position, &cos, &sin);
      const float y1 = x1[j] * cos - x2[j] * sin;
      x2[j] = x1[j] * sin + x2[j] * cos;
      x1[j] = y1;
    }
  } else if (slice.position == LrpeType::kCosine) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x1[j] *= Wave(slice, steps, position, slice.first[0] + f + j);
      x2[j] *= Wave(slice, steps, position, slice.first[1] + f + j);
    }
  }
}

// Makes the tile of chunk c from x, at this head of the launch's first token.
// `slice` is null if nothing is to be encoded.
template <typename IO>
__device__ __forceinline__ void MakeTile(const IO* x, int64_t stride,
                                         const Recipe& recipe,
                                         const Slice* slice,
                                         const uint64_t* steps, const Row& row,
                                         int c, uint32_t tile) {
  const int thread = threadIdx.x % kGroup;
  const int piece = thread % 4;
  const int begin = row.Begin(c);
  const int end = row.End(c);
#pragma unroll 1
  for (int i = thread / 4; i < kChunk; i += kGroup / 4) {
    float x1[8] = {};
    float x2[8] = {};
    const bool valid = i >= begin && i < end;
    const IO* token = x + (valid ? row.Token(c, i) : row.first_token) * stride;
    float2 stats = make_float2(0.0f, 0.0f);
    if (recipe.activation == Activation::kSoftmax) {  // by whole warps
      stats = SoftmaxStats(token, recipe.dim);
    }
    if (valid) {
      const int f = 8 * piece;
      const int count1 = recipe.end[0] - recipe.first[0] - f;
      const int count2 = recipe.end[1] - recipe.first[1] - f;
      LoadEight(token + recipe.first[0] + f, count1, x1);
      LoadEight(token + recipe.first[1] + f, count2, x2);
      ActivateEight(recipe.activation, stats, count1, x1);
      ActivateEight(recipe.activation, stats, count2, x2);
      if (slice != nullptr) {
        EncodeEights(*slice, steps, row.Position(c, i), f, x1, x2);
      }
    }
    StoreEight(tile + wgmma::PieceOffset(i, piece), x1);
    StoreEight(tile + wgmma::PieceOffset(i, piece + 4), x2);
  }
}

// ---- tiles that are copied, then changed in place ----

__device__ __forceinline__ void LoadEightShared(uint32_t from, float (&x)[8]) {
  uint32_t word[4];
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from));
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    x[2 * j] = Half<__nv_bfloat16>::Low(word[j]);
    x[2 * j + 1] = Half<__nv_bfloat16>::High(word[j]);
  }
}

// cos and sin of phase · 2⁻³² turns, to about 2⁻²⁰.
__device__ __forceinline__ void FastCosSin(uint32_t phase, float* cos,
                                           float* sin) {
  const float radians =
      static_cast<float>(static_cast<int32_t>(phase)) * 1.4629180792671596e-9f;
  *cos = __cosf(radians);
  *sin = __sinf(radians);
}

__device__ __forceinline__ void ActivateSome(Activation activation, int count,
                                             float (&x)[8]) {
  if (activation == Activation::kNone) return;
  if (activation == Activation::kSilu) {  // of 0 it is 0
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] *= __fdividef(1.0f, 1.0f + FastExp(-x[j]));
    }
    return;
  }
#pragma unroll 1
  for (int j = 0; j < 8; ++j) {
    // A loop over registers: each rotates through the first.
    const float y = j < count ? DeviceActivate(activation, x[0]) : 0.0f;
#pragma unroll
    for (int i = 0; i < 7; ++i) x[i] = x[i + 1];
    x[7] = y;
  }
}

// q and k of chunk c, which have the same angles.
__device__ __forceinline__ void ChangeKeys(Activation q_activation,
                                           Activation k_activation,
                                           const Slice& slice,
                                           const uint64_t* steps,
                                           const Row& row, int c,
                                           uint32_t queries, uint32_t keys) {
  const int thread = threadIdx.x % kGroup;
  const int f = thread % 4 * 8;
  const int count1 = slice.end[0] - slice.first[0] - f;
  const int count2 = slice.end[1] - slice.first[1] - f;
#pragma unroll 1
  for (int i = thread / 4; i < kChunk; i += kGroup / 4) {
    if (i < row.Begin(c) || i >= row.End(c)) continue;  // zeros
    const uint32_t at1 = wgmma::PieceOffset(i, thread % 4);
    const uint32_t at2 = wgmma::PieceOffset(i, thread % 4 + 4);
    float q1[8], q2[8], k1[8], k2[8];
    LoadEightShared(queries + at1, q1);
    LoadEightShared(queries + at2, q2);
    LoadEightShared(keys + at1, k1);
    LoadEightShared(keys + at2, k2);
    ActivateSome(q_activation, count1, q1);
    ActivateSome(q_activation, count2, q2);
    ActivateSome(k_activation, count1, k1);
    ActivateSome(k_activation, count2, k2);
    const uint64_t position = static_cast<uint64_t>(row.Position(c, i));
    const auto angle = [&](int feature, float* cos, float* sin) {
      FastCosSin(static_cast<uint32_t>(steps[feature] * position >> 32), cos,
                 sin);
    };
    if (slice.position == LrpeType::kRotate) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j >= count1) break;
        float cos, sin;
        angle(slice.first[0] + f + j, &cos, &sin);
        const float q = q1[j] * cos - q2[j] * sin;
        q2[j] = q1[j] * sin + q2[j] * cos;
        q1[j] = q;
        const float k = k1[j] * cos - k2[j] * sin;
        k2[j] = k1[j] * sin + k2[j] * cos;
        k1[j] = k;
      }
    } else if (slice.position == LrpeType::kCosine) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float cos, sin;
        if (j < count1) {
          angle(slice.first[0] + f + j, &cos, &sin);
          const float wave = slice.part == 0 ? cos : sin;
          q1[j] *= wave;
          k1[j] *= wave;
        }
        if (j < count2) {
          angle(slice.first[1] + f + j, &cos, &sin);
          const float wave = slice.part == 0 ? cos : sin;
          q2[j] *= wave;
          k2[j] *= wave;
        }
      }
    }
    StoreEight(queries + at1, q1);
    StoreEight(queries + at2, q2);
    StoreEight(keys + at1, k1);
    StoreEight(keys + at2, k2);
  }
}

// v of chunk c, of which the tile has `features`.
__device__ __forceinline__ void ChangeValues(Activation activation,
                                             int features, const Row& row,
                                             int c, uint32_t values) {
  const int thread = threadIdx.x % kGroup;
  const int piece = thread % 8;
#pragma unroll 1
  for (int i = thread / 8; i < kChunk; i += kGroup / 8) {
    if (i < row.Begin(c) || i >= row.End(c)) continue;
    float x[8];
    LoadEightShared(values + wgmma::PieceOffset(i, piece), x);
    ActivateSome(activation, features - 8 * piece, x);
    StoreEight(values + wgmma::PieceOffset(i, piece), x);
  }
}

}  // namespace linear_prefill
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_PREFILL_TILES_CUH_
