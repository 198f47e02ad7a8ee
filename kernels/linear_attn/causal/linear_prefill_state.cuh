// State warpgroup (StateGroup) of linear_prefill.cu. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_STATE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_STATE_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/causal/linear_prefill_shared.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace linear_prefill {

// Keeps a part of the state. Sᵀ, 64 columns e by 64 features, is one
// accumulator; so is oᵀ, 64 columns by the 64 tokens of a chunk. So S is an
// operand without leaving its registers.
template <int kGroups>
struct StateGroup {
  __device__ __forceinline__ StateGroup(const LinearPrefillParams& params,
                                        const Shape& shape,
                                        const Layout<kGroups>& l, const Row& r,
                                        int slice_index, int value_tile,
                                        int group_index)
      : p(params),
        s(shape),
        layout(l),
        row(r),
        slice(params.position, shape.head_dim, slice_index),
        rank(slice_index),
        group(group_index),
        thread(GroupThread()),
        warp(thread / 32),
        lane(thread % 32),
        first_column((value_tile * kGroups + group_index) * 64 + 16 * warp),
        routes(shape.key_slices) {
    const uint32_t to = layout.Exchange(group, 0) +
                        rank * s.exchange_blocks * (kGroup * 16) + thread * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int block = min(i, s.key_slices - 1);
      sums[i] = cluster::InBlock(to, block);
      sums_full[i] = cluster::InBlock(layout.SumsFull(group, 0), block);
    }
  }

  // Calls f(register, row of the state, column) for this thread's elements.
  template <typename F>
  __device__ __forceinline__ void ForState(F f) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = slice.StateRow(i / 4 * 8 + lane % 4 * 2 + (i & 1));
      const int column = first_column + lane / 4 + (i & 2 ? 8 : 0);
      if (at >= 0 && column < s.value_dim) {
        f(i, int64_t{at} * s.value_dim + column);
      }
    }
  }

  // λ^n, n in [0, kChunk].
  __device__ __forceinline__ float Power(int n) const {
    float power;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(power)
                 : "r"(layout.powers + 4 * n));
    return power;
  }
  // Powers of a chunk. Of each eight tokens a thread has two.
  struct Powers {
    float all;          // λ^64
    uint32_t after[8];  // λ^(number of later tokens), for ṽ
    float upto[8][2];   // λ^(tokens up to and including), of the outputs
  };
  __device__ __forceinline__ Powers TakePowers(int begin, int end) const {
    Powers w;
    w.all = Power(end - begin);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int place = 8 * i + lane % 4 * 2;
      w.after[i] = Bf16::Pack(Power(max(end - 1 - place, 0)),
                              Power(max(end - 2 - place, 0)));
      w.upto[i][0] = Power(max(place + 1 - begin, 0));
      w.upto[i][1] = Power(max(place + 2 - begin, 0));
    }
    return w;
  }
  // Sᵀ as an operand, and then Sᵀ times the chunk's decay.
  __device__ __forceinline__ void TakeState(bool decays, const Powers& w,
                                            float (&state)[32],
                                            uint32_t (&factor)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      factor[i] = Bf16::Pack(state[2 * i], state[2 * i + 1]);
    }
    if (decays) {
#pragma unroll
      for (int i = 0; i < 32; ++i) state[i] *= w.all;
    }
  }

  // ṽᵀ as an operand, and with each token's column times its power of the
  // decay.
  __device__ __forceinline__ void TakeValues(uint32_t values, bool decays,
                                             const Powers& w,
                                             uint32_t (&value)[4][4],
                                             uint32_t (&weighted)[4][4]) const {
    const int matrix = lane / 8;
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const int token = 16 * step + matrix / 2 * 8 + lane % 8;
      LoadMatricesTransposed(
          value[step],
          values + wgmma::PieceOffset(token, 2 * warp + matrix % 2));
    }
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weighted[step][i] = value[step][i];
    }
    if (!decays) return;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t& x = weighted[eight / 2][eight % 2 * 2 + i];
        asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(w.after[eight]));
      }
    }
  }

  // oᵀ = Sᵀ q̃ᵀ, and in a second group of products Sᵀ += ṽᵀ k̃.
  __device__ __forceinline__ void QueryAndUpdate(
      int stage, const uint32_t (&factor)[16], const uint32_t (&weighted)[4][4],
      float (&out)[32], float (&state)[32]) const {
    const uint64_t queries =
        WgmmaUniform(wgmma::ByRows(layout.Queries(stage), 0));
    const uint64_t keys = WgmmaUniform(wgmma::ByColumns(layout.Keys(stage), 0));
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const uint32_t a[4] = {factor[4 * step], factor[4 * step + 1],
                             factor[4 * step + 2], factor[4 * step + 3]};
      wgmma::Multiply<false>(
          out, a, WgmmaAdvance(queries, step * wgmma::kRowStep), step > 0);
    }
    WgmmaCommit();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply<true>(state, weighted[step],
                            WgmmaAdvance(keys, step * wgmma::kColumnStep),
                            true);
    }
    WgmmaCommit();
  }

  // Sends each block of 8 tokens of oᵀ to the block of the cluster that sums
  // it.
  __device__ __forceinline__ void Send(int c, const float (&out)[32]) const {
    BarrierWait(layout.SumsFree(group, c), (c >> 1 & 1) ^ 1);
    const uint32_t buffer = (c & 1) * s.exchange_bytes;
    const uint32_t barrier = (c & 1) * 8;
    if (s.key_slices == 1) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        asm volatile(
            "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                layout.Exchange(group, c) + b * (kGroup * 16) + thread * 16),
            "f"(out[4 * b]), "f"(out[4 * b + 1]), "f"(out[4 * b + 2]),
            "f"(out[4 * b + 3])
            : "memory");
      }
      BarrierArrive(layout.SumsFull(group, c));
    } else if (s.key_slices == 2) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        cluster::SendFour(sums[b / 4] + buffer + b % 4 * (kGroup * 16),
                          sums_full[b / 4] + barrier, out[4 * b],
                          out[4 * b + 1], out[4 * b + 2], out[4 * b + 3]);
      }
    } else {
      const uint32_t to = layout.Exchange(group, c) +
                          rank * s.exchange_blocks * (kGroup * 16) +
                          thread * 16;
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        cluster::SendFour(
            cluster::InBlock(to + routes.Place(b) * (kGroup * 16),
                             routes.Owner(b)),
            cluster::InBlock(layout.SumsFull(group, c), routes.Owner(b)),
            out[4 * b], out[4 * b + 1], out[4 * b + 2], out[4 * b + 3]);
      }
    }
  }

  __device__ __forceinline__ void Run(float* head_state, bool fresh,
                                      bool decays) {
    float state[32] = {};
    if (!fresh) {
      ForState([&](int i, int64_t at) { state[i] = head_state[at]; });
    }
    Powers powers = TakePowers(row.Begin(0), row.End(0));
    int stage = 0;
    uint32_t phase = 0;
    for (int c = 0; c < row.chunks; ++c) {
      if (c == 1 || c == row.chunks - 1) {
        powers = TakePowers(row.Begin(c), row.End(c));
      }
      Step(c, stage, phase, decays, powers, state);
      if (++stage == s.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
    ForState([&](int i, int64_t at) { head_state[at] = state[i]; });
  }

  __device__ __forceinline__ void Step(int c, int stage, uint32_t phase,
                                       bool decays, const Powers& w,
                                       float (&state)[32]) const {
    float out[32];
    uint32_t factor[16];
    uint32_t value[4][4];
    uint32_t weighted[4][4];
    BarrierWait(layout.Full(stage), phase);
    TakeValues(layout.Values(stage, group), decays, w, value, weighted);
    TakeState(decays, w, state, factor);
    WgmmaPin(state);
    QueryAndUpdate(stage, factor, weighted, out, state);
    WgmmaWait<1>();
    WgmmaPin(out);
    if (decays) {
#pragma unroll
      for (int i = 0; i < 32; ++i) out[i] *= w.upto[i / 4][i % 2];
    }
    BarrierWait(layout.ScoresFull(c), c >> 1 & 1);
    const uint64_t scores = WgmmaUniform(wgmma::ByRows(layout.Scores(c), 0));
    WgmmaPin(out);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply<false>(
          out, value[step], WgmmaAdvance(scores, step * wgmma::kRowStep), true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaPin(out);
    WgmmaPin(state);
    WgmmaPin(factor);
    WgmmaPin(weighted);
    WgmmaPin(value);
    if (lane == 0) {
      BarrierArrive(layout.Free(stage));
      BarrierArrive(layout.ScoresFree(c));
    }
    Send(c, out);
  }

  const LinearPrefillParams& p;
  const Shape& s;
  const Layout<kGroups>& layout;
  const Row& row;
  const Slice slice;
  int rank;
  int group;
  int thread;
  int warp;
  int lane;
  int first_column;  // of this warp's 16
  Routes routes;
  uint32_t sums[2];  // where two key slices send to, and their barriers
  uint32_t sums_full[2];
};

}  // namespace linear_prefill
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_STATE_CUH_
