// The two products of a decode step on a page of 64 tokens, by a warpgroup:
// scores from keys and queries, outputs from values and weights.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_PRODUCTS_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_PRODUCTS_CUH_

#include "kernels/common/mma.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// Both classes have
//
//   Scores   sum[token, column] = Σ_d B_k[token, d] · query[d, column] over
//            `steps` times 16 features (kSteps, unless that is 0). The query's
//            plane is [kOctets, kTerms, D / 8, 8, 8], as in tpa_layout.h. The
//            products add its terms, the small one first, or, if kApart, they
//            have separate columns: octet kTerms · j + term.
//   Values   out[feature, column] (+)= Σ_token B_v[token, feature] ·
//            weights[token, column], `weights` a plane of the columns;
//            accumulates into `out` if `add`
//   Begin    before a group: makes writes of operands and sums visible
//   Commit   after it
//   Wait     until at most the last kLeft groups are in flight. Until then
//            nothing else may touch their operands and results.
//
// Tokens, or features of a tile of 64, are rows: warp w of the four has rows 16
// w to 16 w + 15, and lane l in [j] row l / 4 (and in [j][2], [j][3] that plus
// 8), columns 8 j + 2 (l % 4) and the next.

// With wgmma. Products have no branches between them if kSteps is given and all
// kTiles have features: otherwise ptxas makes each wait for the last.
template <typename T, int kColumns, int kTiles, int kSteps>
struct TpaWgmmaProducts {
  static constexpr bool kAsync = true;
  static constexpr bool kEarlyKeys = kSteps > 0;
  static constexpr int kOctets = kColumns / 8;
  static constexpr int kTerms = Half<T>::kTerms;
  // With many features, keys are read from shared memory once for both terms.
  // With few features they are read twice, which costs less than adding the
  // terms.
  static constexpr bool kApart = kTiles > 1;
  static constexpr int kSums = kApart ? kTerms * kOctets : kOctets;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ __forceinline__ static void Scores(float (&sum)[kSums][4],
                                                uint32_t keys, uint32_t query,
                                                int steps) {
    const int all = kSteps > 0 ? kSteps : steps;
    const uint32_t term_bytes = 256 * static_cast<uint32_t>(all);
    const uint64_t a = WgmmaOperand(keys, kTpaOctetBytes, 128);
    const uint64_t b =
        WgmmaOperand(query, 128, kApart ? term_bytes : kTerms * term_bytes);
#pragma unroll
    for (int term = kApart ? 0 : kTerms - 1; term >= 0; --term) {
      const uint64_t b_term = Advance(b, term * term_bytes);
      if constexpr (kSteps > 0) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          Wgmma<kMajorK, kMajorK>(sum, Advance(a, 2 * kTpaOctetBytes * step),
                                  Advance(b_term, 256 * step),
                                  (!kApart && term < kTerms - 1) || step > 0,
                                  T());
        }
      } else {
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
          Wgmma<kMajorK, kMajorK>(sum, Advance(a, 2 * kTpaOctetBytes * step),
                                  Advance(b_term, 256 * step),
                                  (!kApart && term < kTerms - 1) || step > 0,
                                  T());
        }
      }
    }
  }

  __device__ __forceinline__ static void Values(
      float (&out)[kTiles][kOctets][4], uint32_t values, uint32_t weights,
      int tiles, bool add) {
    const uint64_t b = WgmmaOperand(weights, 128, kTpaOctetBytes);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (kSteps == 0 && tile >= tiles) break;
      const uint64_t a =
          WgmmaOperand(values + tile * 8 * kTpaOctetBytes, 128, kTpaOctetBytes);
#pragma unroll
      for (int step = 0; step < kTpaPageTokens / 16; ++step) {
        Wgmma<kMajorMN, kMajorMN>(out[tile], Advance(a, 256 * step),
                                  Advance(b, 256 * step), add || step > 0, T());
      }
    }
  }

  // WgmmaAdvance on the lower half alone, which holds the address and does not
  // overflow: half the instructions.
  __device__ __forceinline__ static uint64_t Advance(uint64_t operand,
                                                     uint32_t bytes) {
    const uint32_t low = static_cast<uint32_t>(operand) + (bytes >> 4);
    return (operand & 0xffffffff00000000ull) | low;
  }

  __device__ __forceinline__ static void Begin() { WgmmaFence(); }
  __device__ __forceinline__ static void Commit() { WgmmaCommit(); }
  template <int kLeft>
  __device__ __forceinline__ static void Wait() {
    WgmmaWait<kLeft>();
  }
  // After Wait, for registers that were waited for.
  template <int kRows>
  __device__ __forceinline__ static void Pin(float (&d)[kRows][4]) {
    WgmmaPin(d);
  }
#endif
};

// With mma.sync, for every GPU from Ampere on.
template <typename T, int kColumns, int kTiles>
struct TpaMmaProducts {
  static constexpr bool kAsync = false;
  static constexpr bool kEarlyKeys = false;
  static constexpr int kOctets = kColumns / 8;
  static constexpr int kTerms = Half<T>::kTerms;
  static constexpr bool kApart = false;
  static constexpr int kSums = kOctets;

  __device__ __forceinline__ static void Scores(float (&sum)[kOctets][4],
                                                uint32_t keys, uint32_t query,
                                                int steps) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    keys += kTpaOctetBytes * (lane / 16) + 16 * (16 * warp + lane % 16);
    query += 128 * (lane / 8 % 2) + 16 * (lane % 8);
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][i] = 0.0f;
    }
#pragma unroll 2
    for (int step = 0; step < steps; ++step) {
      uint32_t a[4];
      LoadMatrices(a, keys + 2 * kTpaOctetBytes * step);
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        // Both terms of an octet: lanes from 16 on address rows of the second.
        uint32_t b[4];
        LoadMatrices(b,
                     query + 256 * (steps * (kTerms * j + lane / 16) + step));
        Half<T>::Mma(sum[j], a, b[2], b[3]);
        Half<T>::Mma(sum[j], a, b[0], b[1]);
      }
    }
  }

  __device__ __forceinline__ static void Values(
      float (&out)[kTiles][kOctets][4], uint32_t values, uint32_t weights,
      int tiles, bool add) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    values += kTpaOctetBytes * (2 * warp + lane / 8 % 2) +
              16 * (lane / 16 * 8 + lane % 8);
    weights += 16 * (lane % 16);
    if (!add) {
#pragma unroll
      for (int i = 0; i < kTiles * kOctets * 4; ++i) {
        out[i / (4 * kOctets)][i / 4 % kOctets][i % 4] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < kTpaPageTokens / 16; ++step) {
      uint32_t b[(kOctets + 1) / 2][4];
#pragma unroll
      for (int j = 0; j < (kOctets + 1) / 2; ++j) {
        const int octet = lane < 16 ? 2 * j : min(2 * j + 1, kOctets - 1);
        LoadMatricesTransposed(b[j],
                               weights + kTpaOctetBytes * octet + 256 * step);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile >= tiles) break;
        uint32_t a[4];
        LoadMatricesTransposed(a,
                               values + 8 * kTpaOctetBytes * tile + 256 * step);
#pragma unroll
        for (int j = 0; j < kOctets; ++j) {
          const uint32_t(&two)[4] = b[j / 2];
          Half<T>::Mma(out[tile][j], a, two[j % 2 * 2], two[j % 2 * 2 + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ static void Begin() {}
  __device__ __forceinline__ static void Commit() {}
  template <int kLeft>
  __device__ __forceinline__ static void Wait() {}
  template <int kRows>
  __device__ __forceinline__ static void Pin(float (&)[kRows][4]) {}
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_PRODUCTS_CUH_
