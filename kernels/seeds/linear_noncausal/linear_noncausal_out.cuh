// Main loop of linear_noncausal.cu, and the outputs of one part. Device code
// only.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_OUT_CUH_
#define RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_OUT_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/seeds/linear_noncausal/linear_noncausal_state.cuh"

namespace recurve {
namespace linear_noncausal {

template <LrpeType kPosition>
struct Noncausal : NoncausalState<kPosition> {
  using Base = NoncausalState<kPosition>;
  using Base::AddStep;
  using Base::count;
  using Base::first_row;
  using Base::first_step;
  using Base::first_token;
  using Base::group;
  using Base::head;
  using Base::kEncodings;
  using Base::lane;
  using Base::Load;
  using Base::MakeTokenWaves;
  using Base::memory;
  using Base::p;
  using Base::part_steps;
  using Base::position;
  using Base::rank;
  using Base::Reduce;
  using Base::s;
  using Base::SequenceStats;
  using Base::TakeKeys;
  using Base::TakeTurns;
  using Base::thread;
  using Base::TokenStats;
  using Base::WaitForLoad;
  using Base::warp;
  using typename Base::Keys;
  using typename Base::Memory;
  using typename Base::Turns;

  using Base::Base;

  // A thread's q: tokens g and g + 8 of its warp's 16, and of each pair of
  // eights of features, its own two of both.
  __device__ __forceinline__ void LoadQueries(uint32_t queries, int eight,
                                              uint32_t (&raw)[4]) const {
    const int token = first_row + lane / 8 % 2 * 8 + lane % 8;
    const int feature = (lane / 16 == 0 ? 0 : s.half) + 8 * eight;
    LoadMatrices(raw, queries + feature / 64 * kBlockBytes +
                          wgmma::PieceOffset(token, feature / 8 % 8));
  }
  __device__ __forceinline__ bool Exists(int eight, int i) const {
    return 8 * eight < s.first_end &&
           (i == 0 || s.half + 8 * eight < s.head_dim);
  }
  // Maximum over the features of the two tokens.
  __device__ __forceinline__ void QueryMax(uint32_t queries,
                                           float (&max)[2]) const {
    constexpr uint32_t kNone = 0xff80ff80u;  // two of -inf
    uint32_t pair[2] = {kNone, kNone};
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      uint32_t raw[4];
      LoadQueries(queries, eight, raw);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // token i % 2, feature i / 2
        asm("max.bf16x2 %0, %0, %1;"
            : "+r"(pair[i % 2])
            : "r"(Exists(eight, i / 2) ? raw[i] : kNone));
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      max[t] = fmaxf(Bf16::Low(pair[t]), Bf16::High(pair[t]));
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        max[t] = fmaxf(max[t], __shfl_xor_sync(0xffffffffu, max[t], offset));
      }
    }
  }

  // x[token][half][two features]. The division of a softmax by its sum is
  // deferred.
  template <Change kChange>
  __device__ __forceinline__ void ChangeQueries(int eight,
                                                const float (&max)[2],
                                                float (&x)[2][2][2]) const {
    switch (kChange) {
      case Change::kNone:
        break;
      case Change::kSilu:
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& y = x[i / 4][i / 2 % 2][i % 2];
          y = FastSilu(y);
        }
        break;
      case Change::kFeatureSoftmax:
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& y = x[i / 4][i / 2 % 2][i % 2];
          y = FastExp(y - max[i / 4]);
        }
        break;
      case Change::kSequenceSoftmax:
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int feature = (h == 0 ? 0 : s.half) + 8 * eight + lane % 4 * 2;
          const float4 of = LoadShared<float4>(memory.q_stats + feature * 8);
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            x[t][h][0] = FastExp(x[t][h][0] - of.x) * of.y;
            x[t][h][1] = FastExp(x[t][h][1] - of.z) * of.w;
          }
        }
        break;
    }
    if constexpr (!kKeepsZero<kChange>) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (!Exists(eight, i / 2 % 2)) x[i / 4][i / 2 % 2][i % 2] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void EncodeQueries(
      int eight, const float (&x)[2][2][2],
      uint32_t (&factor)[kEncodings][4]) const {
    float cos[2][2][2];
    float sin[2][2][2];
    if constexpr (kPosition != LrpeType::kNone) {
#pragma unroll
      for (int h = 0; h < kEncodings; ++h) {
        const int angle = (h == 0 ? 0 : s.half) + 8 * eight + lane % 4 * 2;
        const float4 base = LoadShared<float4>(Base::Bases() + angle * 8);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const float4 wave = LoadShared<float4>(
              memory.waves + (lane / 4 + 8 * t) * Memory::kWaveBytes +
              angle * 8);
          cos[t][h][0] = base.x * wave.x - base.y * wave.y;
          sin[t][h][0] = base.y * wave.x + base.x * wave.y;
          cos[t][h][1] = base.z * wave.z - base.w * wave.w;
          sin[t][h][1] = base.w * wave.z + base.z * wave.w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // register: token i % 2, half i / 2
      const int t = i % 2;
      const int h = i / 2;
      float y[kEncodings][2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kPosition == LrpeType::kCosine) {
          y[0][j] = x[t][h][j] * cos[t][h][j];
          y[1][j] = x[t][h][j] * sin[t][h][j];
        } else if constexpr (kPosition == LrpeType::kRotate) {
          y[0][j] = h == 0
                        ? x[t][0][j] * cos[t][0][j] - x[t][1][j] * sin[t][0][j]
                        : x[t][0][j] * sin[t][0][j] + x[t][1][j] * cos[t][0][j];
        } else {
          y[0][j] = x[t][h][j];
        }
      }
#pragma unroll
      for (int e = 0; e < kEncodings; ++e) {
        factor[e][i] = Bf16::Pack(y[e][0], y[e][1]);
      }
    }
  }

  // The outputs of a step; each warpgroup has 64 of its tokens.
  __device__ __forceinline__ void OutStep(int load, const Turns& turns) const {
    Base::MakeBases(turns, first_step + load - part_steps);
    float out[64];
    switch (s.q_change) {
      case Change::kNone:
        Query<Change::kNone>(load, out);
        break;
      case Change::kSilu:
        Query<Change::kSilu>(load, out);
        break;
      case Change::kFeatureSoftmax:
        Query<Change::kFeatureSoftmax>(load, out);
        break;
      case Change::kSequenceSoftmax:
        Query<Change::kSequenceSoftmax>(load, out);
        break;
    }
    const uint32_t gates = memory.Stage(load) + kTensorBytes;
    if (p.g == nullptr) {
      Gate<false, false>(gates, out);
    } else if (p.g_activation == Activation::kSilu) {
      Gate<true, true>(gates, out);
    } else {
      Gate<true, false>(gates, out);
    }
    Write(load, gates);
  }
  template <Change kChange>
  __device__ __forceinline__ void Query(int load, float (&out)[64]) const {
    const uint32_t stage = memory.Stage(load);
    if constexpr (kPosition == LrpeType::kNone && kChange == Change::kNone) {
      uint32_t factor[8][4];
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        LoadQueries(stage, eight, factor[eight]);
      }
      WgmmaFence();
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        MultiplyState(out, factor[eight], eight, eight > 0);
      }
      WgmmaCommit();
      WgmmaWait<0>();
      WgmmaPin(factor);
    } else {
      constexpr bool kSoftmax = kChange == Change::kFeatureSoftmax;
      float max[2];
      float sum[2] = {};  // of this thread's features
      if (kSoftmax) QueryMax(stage, max);
      uint32_t factor[2][kEncodings][4];
      uint32_t raw[2][4];
      LoadQueries(stage, 0, raw[0]);
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        if (eight < 7) LoadQueries(stage, eight + 1, raw[(eight + 1) % 2]);
        auto& f = factor[eight % 2];
        float x[2][2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!Exists(eight, i / 2)) raw[eight % 2][i] = 0;
          x[i % 2][i / 2][0] = Bf16::Low(raw[eight % 2][i]);
          x[i % 2][i / 2][1] = Bf16::High(raw[eight % 2][i]);
        }
        ChangeQueries<kChange>(eight, max, x);
        if (kSoftmax) {
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[i / 4] += x[i / 4][i / 2 % 2][i % 2];
        }
        EncodeQueries(eight, x, f);
        WgmmaFence();
#pragma unroll
        for (int e = 0; e < kEncodings; ++e) {
          MultiplyState(out, f[e], 8 * e + eight, eight + e > 0);
        }
        WgmmaCommit();
        WgmmaWait<1>();
        WgmmaPin(factor[(eight + 1) % 2]);
      }
      WgmmaWait<0>();
      WgmmaPin(factor[1]);
      WgmmaPin(out);
      if (kSoftmax) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
          for (int offset = 1; offset < 4; offset *= 2) {
            sum[t] += __shfl_xor_sync(0xffffffffu, sum[t], offset);
          }
          const float inverse = 1.0f / sum[t];
#pragma unroll
          for (int b = 0; b < 16; ++b) {
            out[4 * b + 2 * t] *= inverse;
            out[4 * b + 2 * t + 1] *= inverse;
          }
        }
      }
    }
    WgmmaPin(out);
  }
  __device__ __forceinline__ void MultiplyState(float (&out)[64],
                                                const uint32_t (&factor)[4],
                                                int step, bool add) const {
    wgmma::Multiply<true>(
        out, factor, wgmma::ByColumns(memory.state, step, Memory::kStateBlock),
        add);
  }
  // Gated outputs replace the gates in shared memory.
  template <bool kGated, bool kSilu>
  __device__ __forceinline__ void Gate(uint32_t gates,
                                       const float (&out)[64]) const {
    const int token = first_row + lane / 4;
    // Rows 8 apart have the same swizzle.
    const uint32_t row = gates + token * 128 + lane % 4 * 4;
    const int swap = token & 7;
#pragma unroll
    for (int b = 0; b < 16; ++b) {
      const uint32_t piece = row + b / 8 * kBlockBytes + ((b % 8 ^ swap) << 4);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint32_t at = piece + t * (8 * 128);
        float low = out[4 * b + 2 * t];
        float high = out[4 * b + 2 * t + 1];
        if constexpr (kGated) {
          const uint32_t gate = LoadShared<uint32_t>(at);
          const float g0 = Bf16::Low(gate);
          const float g1 = Bf16::High(gate);
          low *= kSilu ? FastSilu(g0) : g0;
          high *= kSilu ? FastSilu(g1) : g1;
        }
        StoreShared(at, Bf16::Pack(low, high));
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void Write(int load, uint32_t from) const {
    const int step = first_step + load - part_steps;
    const int column = lane % 16 * 8;
    if (column >= s.value_dim) return;
    const int row = first_row + lane / 16;
    const int left = count - step * kStepTokens - row;
    const int64_t at = (first_token + step * kStepTokens + row) * p.out_stride +
                       int64_t{head} * s.value_dim + column;
    from += column / 64 * kBlockBytes;
    if (p.out_type == ElementType::kFloat32) {
      return WriteRows(static_cast<float*>(p.out) + at, from, row, left,
                       column);
    }
    WriteRows(static_cast<__nv_bfloat16*>(p.out) + at, from, row, left, column);
  }

  template <typename T>
  __device__ __forceinline__ void WriteRows(T* to, uint32_t from, int row,
                                            int left, int column) const {
    const int64_t next = 2 * p.out_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 x = LoadShared<uint4>(
          from + wgmma::PieceOffset(row + 2 * i, column / 8 % 8));
      if (2 * i < left) Put(to, x);
      to += next;
    }
  }
  static __device__ __forceinline__ void Put(__nv_bfloat16* to, uint4 x) {
    *reinterpret_cast<uint4*>(to) = x;
  }
  static __device__ __forceinline__ void Put(float* to, uint4 x) {
    float4* const at = reinterpret_cast<float4*>(to);
    at[0] = make_float4(Bf16::Low(x.x), Bf16::High(x.x), Bf16::Low(x.y),
                        Bf16::High(x.y));
    at[1] = make_float4(Bf16::Low(x.z), Bf16::High(x.z), Bf16::Low(x.w),
                        Bf16::High(x.w));
  }

  __device__ __forceinline__ void Run(float* head_state) {
    SequenceStats();
    // Loads of q and g begin before the parts of S are added, unless the
    // exchange needs their memory.
    const int early = Memory::kOwnExchange ? 2 * part_steps : part_steps;
    float state[kEncodings][64] = {};
    for (int i = 0; i < kStages; ++i) Load(i, early);
    MakeTokenWaves();
    const Keys keys = TakeKeys();
    for (int load = 0; load < part_steps; ++load) {
      WaitForLoad(load, early);
      BulkCopyFence();
      __syncthreads();
      if (s.k_change == Change::kFeatureSoftmax) {
        TokenStats(memory.Stage(load));
        __syncthreads();
      }
      AddStep(load, keys, state);
      __syncthreads();
      Load(load + kStages, early);
    }
    Reduce(state, head_state);
    const int all = 2 * part_steps;
    if (!Memory::kOwnExchange) {
      for (int i = 0; i < kStages; ++i) Load(part_steps + i, all);
    }
    // From here on the warpgroups are independent, so that one computes while
    // the other waits.
    const Turns turns = TakeTurns();
    for (int load = part_steps; load < all; ++load) {
      WaitForLoad(load, all);
      BulkCopyFence();
      GroupBarrier();
      OutStep(load, turns);
      GroupBarrier();
      Load(load + kStages, all);
    }
    cluster::Wait();
  }
  __device__ __forceinline__ void GroupBarrier() const {
    NamedBarrier(1 + group, 128);
  }
};

}  // namespace linear_noncausal
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_OUT_CUH_
