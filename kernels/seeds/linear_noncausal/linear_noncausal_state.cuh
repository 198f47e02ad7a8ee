// S of one part in linear_noncausal.cu, and the sum of the parts. Device code
// only.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_STATE_CUH_
#define RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_STATE_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/seeds/linear_noncausal/linear_noncausal_loads.cuh"

namespace recurve {
namespace linear_noncausal {

template <LrpeType kPosition>
struct NoncausalState : NoncausalLoads<kPosition> {
  using Base = NoncausalLoads<kPosition>;
  using Base::count;
  using Base::first_row;
  using Base::first_step;
  using Base::first_token;
  using Base::group;
  using Base::head;
  using Base::kEncodings;
  using Base::lane;
  using Base::memory;
  using Base::p;
  using Base::part_steps;
  using Base::position;
  using Base::rank;
  using Base::s;
  using Base::thread;
  using Base::warp;
  using typename Base::Memory;

  using Base::Base;

  // Softmax over the features: two threads read each token of k.
  __device__ __forceinline__ void TokenStats(uint32_t keys) const {
    const int token = thread / 2;
    const int block = thread % 2;
    const uint32_t row = keys + block * kBlockBytes;
    const int features = min(s.head_dim - block * 64, 64);
    float2 stats = make_float2(-INFINITY, 0.0f);
    for (int piece = 0; piece * 8 < features; ++piece) {
      float x[8];
      linear_prefill::LoadEightShared(row + wgmma::PieceOffset(token, piece),
                                      x);
      float max = x[0];
#pragma unroll
      for (int j = 1; j < 8; ++j) max = fmaxf(max, x[j]);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += FastExp(x[j] - max);
      stats = Merge(stats, make_float2(max, sum));
    }
    float2 other;
    other.x = __shfl_xor_sync(0xffffffffu, stats.x, 1);
    other.y = __shfl_xor_sync(0xffffffffu, stats.y, 1);
    stats = block == 0 ? Merge(stats, other) : Merge(other, stats);
    if (block == 0) {
      StoreShared(memory.token_stats + token * 8,
                  make_float2(stats.x, 1.0f / stats.y));
    }
  }

  // A thread's features of k̃ᵀ: g = lane / 4 of eight in the first half and of
  // their eight partners. M rows of the products are in this order.
  struct Keys {
    int feature[2];
    bool exists[2];
    float2 stats[2];           // over the sequence
    uint64_t turn[2];          // a token
    float turn_cos, turn_sin;  // of 16 tokens, of feature 0 (rotate: both)
    float turn_cos2, turn_sin2;
  };
  __device__ __forceinline__ Keys TakeKeys() const {
    Keys keys;
    const int pair = 8 * (4 * group + warp);
    keys.feature[0] = pair + lane / 4;
    keys.feature[1] = s.half + pair + lane / 4;
    keys.exists[0] = pair < s.first_end;
    keys.exists[1] = pair < s.first_end && s.half + pair < s.head_dim;
    keys.turn_cos = keys.turn_cos2 = 1.0f;
    keys.turn_sin = keys.turn_sin2 = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      keys.turn[i] = 0;
      if (kPosition == LrpeType::kCosine && keys.exists[i]) {
        keys.turn[i] =
            p.phase_steps[head * p.phase_head_stride + keys.feature[i]];
      }
    }
    if (kPosition == LrpeType::kRotate && keys.exists[0]) {
      keys.turn[0] =
          p.phase_steps[head * p.phase_head_stride + keys.feature[0]];
    }
    if (kPosition != LrpeType::kNone) {
      PhaseCosSin(keys.turn[0], 16, &keys.turn_cos, &keys.turn_sin);
      PhaseCosSin(keys.turn[1], 16, &keys.turn_cos2, &keys.turn_sin2);
    }
    if (s.k_change == Change::kSequenceSoftmax) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        keys.stats[i] =
            LoadShared<float2>(memory.k_stats + keys.feature[i] * 8);
      }
    }
    return keys;
  }

  // x[feature][token] of 16 tokens from `token`: its own two, and those eight
  // further.
  template <Change kChange>
  __device__ __forceinline__ void ChangeKeys(const Keys& keys, int token,
                                             float (&x)[2][4]) const {
    switch (kChange) {
      case Change::kNone:
        break;
      case Change::kSilu:
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i / 4][i % 4] = FastSilu(x[i / 4][i % 4]);
        break;
      case Change::kFeatureSoftmax:
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float4 stats = LoadShared<float4>(
              memory.token_stats + (token + 8 * h + lane % 4 * 2) * 8);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            x[i][2 * h] = FastExp(x[i][2 * h] - stats.x) * stats.y;
            x[i][2 * h + 1] = FastExp(x[i][2 * h + 1] - stats.z) * stats.w;
          }
        }
        break;
      case Change::kSequenceSoftmax:
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          // Missing tokens are 0, which may be far above all others: their
          // exponential must be finite, and v, 0 there, removes it.
          const float below =
              fminf(x[i / 4][i % 4] - keys.stats[i / 4].x, 0.0f);
          x[i / 4][i % 4] = FastExp(below) * keys.stats[i / 4].y;
        }
        break;
    }
    if constexpr (!kKeepsZero<kChange>) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (!keys.exists[i / 4]) x[i / 4][i % 4] = 0.0f;
      }
    }
  }

  // Factors of 16 tokens: their own, or cosines then sines.
  __device__ __forceinline__ void EncodeKeys(
      const float (&x)[2][4], const float (&cos)[2][4],
      const float (&sin)[2][4], uint32_t (&factor)[kEncodings][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // register: feature i % 2, tokens by i / 2
      const int f = i % 2;
      const int t = i / 2 * 2;
      if constexpr (kPosition == LrpeType::kCosine) {
        factor[0][i] =
            Bf16::Pack(x[f][t] * cos[f][t], x[f][t + 1] * cos[f][t + 1]);
        factor[1][i] =
            Bf16::Pack(x[f][t] * sin[f][t], x[f][t + 1] * sin[f][t + 1]);
      } else if constexpr (kPosition == LrpeType::kRotate) {
        float y[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          y[j] =
              f == 0
                  ? x[0][t + j] * cos[0][t + j] - x[1][t + j] * sin[0][t + j]
                  : x[0][t + j] * sin[0][t + j] + x[1][t + j] * cos[0][t + j];
        }
        factor[0][i] = Bf16::Pack(y[0], y[1]);
      } else {
        factor[0][i] = Bf16::Pack(x[f][t], x[f][t + 1]);
      }
    }
  }

  // S += k̃ᵀ v of one step.
  __device__ __forceinline__ void AddStep(int load, const Keys& keys,
                                          float (&state)[kEncodings][64]) {
    switch (s.k_change) {
      case Change::kNone:
        return AddChanged<Change::kNone>(load, keys, state);
      case Change::kSilu:
        return AddChanged<Change::kSilu>(load, keys, state);
      case Change::kFeatureSoftmax:
        return AddChanged<Change::kFeatureSoftmax>(load, keys, state);
      case Change::kSequenceSoftmax:
        return AddChanged<Change::kSequenceSoftmax>(load, keys, state);
    }
  }
  template <Change kChange>
  __device__ __forceinline__ void AddChanged(int load, const Keys& keys,
                                             float (&state)[kEncodings][64]) {
    const uint32_t stage = memory.Stage(load);
    const uint32_t values = stage + kTensorBytes;
    const int feature =
        (lane / 8 % 2 == 0 ? 0 : s.half) + 8 * (4 * group + warp);
    const uint32_t from =
        stage + feature / 64 * kBlockBytes +
        wgmma::PieceOffset(lane / 16 * 8 + lane % 8, feature / 8 % 8);
    constexpr int kSteps = kStepTokens / 16;
    if constexpr (kPosition == LrpeType::kNone && kChange == Change::kNone) {
      uint32_t factor[kSteps][4];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        LoadMatricesTransposed(factor[step], from + step * 2048);
      }
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        wgmma::Multiply<true>(state[0], factor[step],
                              wgmma::ByColumns(values, step, kBlockBytes),
                              true);
      }
      WgmmaCommit();
      WgmmaWait<0>();
      WgmmaPin(factor);
      WgmmaPin(state[0]);
    } else {
      Waves waves;
      waves.Begin(keys,
                  static_cast<uint64_t>(position) +
                      static_cast<uint64_t>(first_step + load) * kStepTokens +
                      static_cast<uint64_t>(lane % 4 * 2));
      uint32_t factor[2][kEncodings][4];
      uint32_t raw[2][4];
      LoadMatricesTransposed(raw[0], from);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) {  // prefetch
          LoadMatricesTransposed(raw[(step + 1) % 2], from + (step + 1) * 2048);
        }
        auto& f = factor[step % 2];
        float x[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!keys.exists[i % 2]) raw[step % 2][i] = 0;
          x[i % 2][i / 2 * 2] = Bf16::Low(raw[step % 2][i]);
          x[i % 2][i / 2 * 2 + 1] = Bf16::High(raw[step % 2][i]);
        }
        ChangeKeys<kChange>(keys, 16 * step, x);
        EncodeKeys(x, waves.cos, waves.sin, f);
        WgmmaFence();
#pragma unroll
        for (int e = 0; e < kEncodings; ++e) {
          wgmma::Multiply<true>(state[e], f[e],
                                wgmma::ByColumns(values, step, kBlockBytes),
                                true);
        }
        WgmmaCommit();
        waves.Turn(keys);
        WgmmaWait<1>();
        WgmmaPin(factor[(step + 1) % 2]);
      }
      WgmmaWait<0>();
      WgmmaPin(factor[(kSteps - 1) % 2]);
#pragma unroll
      for (int e = 0; e < kEncodings; ++e) WgmmaPin(state[e]);
    }
  }
  // cos and sin of a thread's features, at its four of 16 tokens.
  struct Waves {
    __device__ __forceinline__ void Begin(const Keys& keys, uint64_t first) {
      if constexpr (kPosition != LrpeType::kNone) {
#pragma unroll
        for (int f = 0; f < kEncodings; ++f) {
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            linear_prefill::FastCosSin(
                static_cast<uint32_t>(
                    keys.turn[f] * (first + t % 2 + t / 2 * 8) >> 32),
                &cos[f][t], &sin[f][t]);
          }
        }
      }
    }
    // 16 tokens on.
    __device__ __forceinline__ void Turn(const Keys& keys) {
      if constexpr (kPosition != LrpeType::kNone) {
#pragma unroll
        for (int f = 0; f < kEncodings; ++f) {
          const float turn_cos = f == 0 ? keys.turn_cos : keys.turn_cos2;
          const float turn_sin = f == 0 ? keys.turn_sin : keys.turn_sin2;
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const float c = cos[f][t];
            cos[f][t] = c * turn_cos - sin[f][t] * turn_sin;
            sin[f][t] = sin[f][t] * turn_cos + c * turn_sin;
          }
        }
      }
    }
    float cos[2][4];
    float sin[2][4];
  };

  // Adds the parts of S: each block its share of the columns, starting from its
  // own part. It writes them to the slot, and to shared memory as an operand of
  // the second half; it reads the shares of the others from there.
  __device__ __forceinline__ void Reduce(const float (&state)[kEncodings][64],
                                         float* head_state) const {
    constexpr int kEights = kEncodings * kShare;  // of columns, of a share
    float sum[kEights][4];
#pragma unroll
    for (int other = 0; other < kParts; ++other) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float* x = &state[i / kShare][4 * (kShare * other + i % kShare)];
        if (other == rank) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] = x[j];
        } else {
          asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                           Exchange(rank, other) + i * (kThreads * 16)),
                       "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                       : "memory");
        }
      }
    }
    ClusterBarrier();
    // All reads are in flight before the first is waited for.
    float x[kParts - 1][kEights][4];
#pragma unroll
    for (int n = 0; n < kParts - 1; ++n) {
      const int part = (rank + 1 + n) % kParts;
      const uint32_t from = InBlock(Exchange(part, rank), part);
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        cluster::ReadFour(from + i * (kThreads * 16), x[n][i]);
      }
    }
#pragma unroll
    for (int n = 0; n < kParts - 1; ++n) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += x[n][i][j];
      }
    }
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      Publish(i / kShare, 8 * (kShare * rank + i % kShare), sum[i]);
    }
    ClusterBarrier();
    TakeShares();
    cluster::Arrive();
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    // Not earlier: a cluster barrier would wait for it.
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      Keep(i / kShare, 8 * (kShare * rank + i % kShare), sum[i], head_state);
    }
  }
  // Where block `part` keeps what block `other` adds.
  __device__ __forceinline__ uint32_t Exchange(int part, int other) const {
    const int place = other < part ? other : other - 1;
    return memory.exchange + place * Memory::kShareBytes + thread * 16;
  }
  // Two rows of eight columns of S as an operand.
  __device__ __forceinline__ void Publish(int encoding, int column,
                                          const float (&x)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row =
          encoding * kFeatures + 8 * (8 * group + 2 * warp + i) + lane / 4;
      StoreShared(memory.state + column / 64 * Memory::kStateBlock +
                      wgmma::PieceOffset(row, column / 8 % 8) + lane % 4 * 4,
                  Bf16::Pack(x[2 * i] * p.scale, x[2 * i + 1] * p.scale));
    }
  }
  // The others' shares.
  __device__ __forceinline__ void TakeShares() const {
    constexpr int kPieces = Memory::kStateRows * kShare / kThreads;
    float x[kParts - 1][kPieces][4];
#pragma unroll
    for (int n = 0; n < kParts - 1; ++n) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int part = (rank + 1 + n) % kParts;
        cluster::ReadFour(InBlock(SharePiece(part, i), part), x[n][i]);
      }
    }
#pragma unroll
    for (int n = 0; n < kParts - 1; ++n) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                         SharePiece((rank + 1 + n) % kParts, i)),
                     "f"(x[n][i][0]), "f"(x[n][i][1]), "f"(x[n][i][2]),
                     "f"(x[n][i][3])
                     : "memory");
      }
    }
  }
  // Piece `i` of this thread of the columns that `part` adds.
  __device__ __forceinline__ uint32_t SharePiece(int part, int i) const {
    const int row = (thread + i * kThreads) / kShare;
    const int piece = kShare * part + thread % kShare;
    return memory.state + piece / 8 * Memory::kStateBlock +
           wgmma::PieceOffset(row, piece % 8);
  }
  // Two rows of eight columns of S in the slot.
  __device__ __forceinline__ void Keep(int encoding, int column,
                                       const float (&x)[4],
                                       float* head_state) const {
    if (head_state == nullptr) return;
    const int pair = 8 * (4 * group + warp);
    const int mine = column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int feature = (i == 0 ? 0 : s.half) + pair + lane / 4;
      if (pair < s.first_end && feature < s.head_dim && mine < s.value_dim) {
        *reinterpret_cast<float2*>(
            head_state +
            int64_t{encoding * s.head_dim + feature} * s.value_dim + mine) =
            make_float2(x[2 * i], x[2 * i + 1]);
      }
    }
  }
};

}  // namespace linear_noncausal
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_STATE_CUH_
