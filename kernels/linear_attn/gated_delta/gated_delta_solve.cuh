// Columns of W and U of a chunk of the gated delta rule: accumulators whose
// rows are features and whose columns are tokens. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_SOLVE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_SOLVE_CUH_

#include "kernels/linear_attn/gated_delta/gated_delta_tiles.cuh"

namespace recurve {
namespace gated_delta {

// The token of element r of block j, and its feature is lane / 4 + r / 2 · 8.
__device__ __forceinline__ int TokenOf(int j, int r) {
  return 8 * j + threadIdx.x % 4 * 2 + r % 2;
}

constexpr int kLowerBytes = kDeltaChunk * kDeltaChunk * 2;  // of a term

// Accumulators of 16 tokens as a left factor.
template <int kTerms>
__device__ __forceinline__ void ToLeft(const float (&low)[4],
                                       const float (&high)[4],
                                       uint32_t (&a)[kTerms][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t terms[kTerms];
    ToTerms(low[2 * half], low[2 * half + 1], terms);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) a[t][half] = terms[t];
    ToTerms(high[2 * half], high[2 * half + 1], terms);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) a[t][2 + half] = terms[t];
  }
}
// Adds a times block (block, j) of what Invert left, transposed.
template <int kTerms>
__device__ __forceinline__ void MultiplyLower(const char* lower,
                                              float (&low)[4], float (&high)[4],
                                              const uint32_t (&a)[kTerms][4],
                                              int block, int j) {
  uint32_t b[kTerms][4];
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    RightRows<128>(b[t], SharedAddress(lower + t * kLowerBytes), 16 * block,
                   16 * j);
  }
  MultiplyTerms<kTerms>(low, a, b, 0);
  MultiplyTerms<kTerms>(high, a, b, 1);
}
// x ← x (I + L)⁻ᵀ, by blocks of 16 tokens. `lower`: what Invert left.
template <int kTerms>
__device__ __forceinline__ void SolveColumns(const char* lower,
                                             float (&x)[8][4]) {
  uint32_t done[4][kTerms][4];
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    float(&low)[4] = x[2 * block];
    float(&high)[4] = x[2 * block + 1];
#pragma unroll
    for (int j = 0; j < block; ++j) {
      MultiplyLower<kTerms>(lower, low, high, done[j], block, j);
    }
    ToLeft<kTerms>(low, high, done[block]);
#pragma unroll
    for (int r = 0; r < 4; ++r) low[r] = high[r] = 0.0f;
    MultiplyLower<kTerms>(lower, low, high, done[block], block, block);
    ToLeft<kTerms>(low, high, done[block]);
  }
}

// Two neighbours of an 8 by 8 matrix of floats, and those of its transpose.
__device__ __forceinline__ float2 TransposePair(const float* x) {
  const uint32_t a = __float_as_uint(x[0]);
  const uint32_t b = __float_as_uint(x[1]);
  const uint32_t low = TransposeMatrix((a & 0xffffu) | b << 16);
  const uint32_t high = TransposeMatrix(a >> 16 | (b & 0xffff0000u));
  return make_float2(__uint_as_float((low & 0xffffu) | high << 16),
                     __uint_as_float(low >> 16 | (high & 0xffff0000u)));
}
// In the order of the accumulators that start from it; 16 columns.
template <int kTerms>
__device__ __forceinline__ void StoreValues(int first, const float (&x)[8][4],
                                            char* values) {
  const int run = first % kDeltaColumns / 16;
  uint4* const to =
      reinterpret_cast<uint4*>(values + first / kDeltaColumns *
                                            DeltaValueTileBytes(kTerms)) +
      threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float(&low)[4] = x[2 * m];
    const float(&high)[4] = x[2 * m + 1];
    if constexpr (kTerms == 1) {
      to[128 * run + 32 * m] =
          make_uint4(TransposeMatrix(Bf16::Pack(low[0], low[1])),
                     TransposeMatrix(Bf16::Pack(high[0], high[1])),
                     TransposeMatrix(Bf16::Pack(low[2], low[3])),
                     TransposeMatrix(Bf16::Pack(high[2], high[3])));
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 a = TransposePair(&low[2 * half]);
        const float2 b = TransposePair(&high[2 * half]);
        to[128 * (2 * run + half) + 32 * m] =
            make_uint4(__float_as_uint(a.x), __float_as_uint(a.y),
                       __float_as_uint(b.x), __float_as_uint(b.y));
      }
    }
  }
}

}  // namespace gated_delta
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_SOLVE_CUH_
