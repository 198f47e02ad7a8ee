// Preparing warpgroup (Preparer) of linear_prefill.cu: tiles of q̃, k̃ and ṽ,
// and the scores. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_PREPARE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_PREPARE_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/copy_groups.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/linear_attn/causal/linear_prefill_shared.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace linear_prefill {

template <int kGroups, Source kSource, typename IO>
struct Preparer {
  __device__ __forceinline__ Preparer(const LinearPrefillParams& params,
                                      const Shape& shape,
                                      const Layout<kGroups>& l, const Row& r,
                                      int head_index, int slice_index,
                                      int value_tile_index)
      : p(params),
        s(shape),
        layout(l),
        row(r),
        slice(params.position, shape.head_dim, slice_index),
        head(head_index),
        first_value(value_tile_index * kGroups * 64) {
    q = static_cast<const IO*>(p.q) + int64_t{head} * s.head_dim;
    k = static_cast<const IO*>(p.k) + int64_t{head} * s.head_dim;
    v = static_cast<const IO*>(p.v) + int64_t{head} * s.value_dim;
    if constexpr (kSource != Source::kMade) {
      query_tile.Begin(q, p.stride, slice.first, slice.end, row);
      key_tile.Begin(k, p.stride, slice.first, slice.end, row);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int first[2] = {first_value + g * 64, first_value + g * 64 + 32};
        const int end[2] = {s.value_dim, s.value_dim};
        value_tile[g].Begin(v, p.stride, first, end, row);
      }
    }
  }

  // Starts the copies of chunk c; called for each in order.
  __device__ __forceinline__ void Copy(int c, int stage) {
    const bool whole = row.Begin(c) == 0 && row.End(c) == kChunk;
    query_tile.Copy(row, c, whole, layout.Queries(stage));
    key_tile.Copy(row, c, whole, layout.Keys(stage));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      value_tile[g].Copy(row, c, whole, layout.Values(stage, g));
    }
  }
  // Activates and encodes the copied tiles.
  __device__ __forceinline__ void Change(int c, int stage) const {
    ChangeKeys(p.q_activation, p.k_activation, slice,
               p.phase_steps + head * p.phase_head_stride, row, c,
               layout.Queries(stage), layout.Keys(stage));
    if (p.v_activation == Activation::kNone) return;
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {
      ChangeValues(p.v_activation, s.value_dim - first_value - g * 64, row, c,
                   layout.Values(stage, g));
    }
  }

  __device__ __forceinline__ void Make(int c, int stage) const {
    Recipe recipe = {p.q_activation,
                     s.head_dim,
                     {slice.first[0], slice.first[1]},
                     {slice.end[0], slice.end[1]}};
    const Slice* encode = p.position == LrpeType::kNone ? nullptr : &slice;
    const uint64_t* steps = p.phase_steps + head * p.phase_head_stride;
    MakeTile(q, p.stride, recipe, encode, steps, row, c, layout.Queries(stage));
    recipe.activation = p.k_activation;
    MakeTile(k, p.stride, recipe, encode, steps, row, c, layout.Keys(stage));
    recipe.activation = p.v_activation;
    recipe.dim = s.value_dim;
    recipe.end[0] = recipe.end[1] = s.value_dim;
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {
      recipe.first[0] = first_value + g * 64;
      recipe.first[1] = recipe.first[0] + 32;
      MakeTile(v, p.stride, recipe, static_cast<const Slice*>(nullptr), steps,
               row, c, layout.Values(stage, g));
    }
  }

  // λ^(i−j) (q̃_i · k̃_j) for j <= i, to bfloat16.
  __device__ __forceinline__ void Scores(int c, int stage,
                                         const float (&weight)[32]) const {
    float scores[32];
    const uint64_t queries =
        WgmmaUniform(wgmma::ByRows(layout.Queries(stage), 0));
    const uint64_t keys = WgmmaUniform(wgmma::ByRows(layout.Keys(stage), 0));
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply(scores, WgmmaAdvance(queries, step * wgmma::kRowStep),
                      WgmmaAdvance(keys, step * wgmma::kRowStep), step > 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaPin(scores);
    const int warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32;
    const int ahead = 16 * warp + lane / 4 - 2 * (lane % 4);
    // Later tokens may give infinity: they are left out, not multiplied by 0.
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      if (b < 2 * warp) {  // all of it is past
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; ++i) scores[i] *= weight[i];
      } else if (b > 2 * warp + 1) {
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; ++i) scores[i] = 0.0f;
      } else {
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; ++i) {
          scores[i] = ahead + Place(i) >= 0 ? scores[i] * weight[i] : 0.0f;
        }
      }
    }
    BarrierWait(layout.ScoresFree(c), (c >> 1 & 1) ^ 1);
    const int matrix = lane / 8;
    const int token = 16 * warp + matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (int b = 0; b < 8; b += 2) {
      const uint32_t r[4] = {Bf16::Pack(scores[4 * b], scores[4 * b + 1]),
                             Bf16::Pack(scores[4 * b + 2], scores[4 * b + 3]),
                             Bf16::Pack(scores[4 * b + 4], scores[4 * b + 5]),
                             Bf16::Pack(scores[4 * b + 6], scores[4 * b + 7])};
      wgmma::StoreMatrices(
          layout.Scores(c) + wgmma::PieceOffset(token, b + matrix / 2), r);
    }
  }

  // i − j of accumulator register r of thread 0.
  __device__ __forceinline__ static constexpr int Place(int r) {
    return (r & 2 ? 8 : 0) - (r / 4 * 8 + (r & 1));
  }

  __device__ __forceinline__ void Run(float log2_decay) {
    const int thread = threadIdx.x % kGroup;
    const int lane = thread % 32;
    const int ahead = thread / 32 * 16 + lane / 4 - 2 * (lane % 4);
    float weight[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      weight[i] =
          exp2f(log2_decay * static_cast<float>(max(ahead + Place(i), 0)));
    }
    if constexpr (kSource != Source::kMade) {
      for (int c = 0; c < min(s.stages - 1, row.chunks); ++c) {
        Copy(c, c);
        CommitCopies();
      }
    }
    int stage = 0;
    uint32_t phase = 1;  // of Free: at first every stage is
    int ahead_stage = s.stages - 1;
    uint32_t ahead_phase = 1;
    for (int c = 0; c < row.chunks; ++c) {
      if constexpr (kSource != Source::kMade) {
        WaitForAllBut<kLinearPrefillMaxStages - 2>(
            min(s.stages - 2, row.chunks - 1 - c));
        if constexpr (kSource == Source::kChanged) {
          NamedBarrier(1, kGroup);  // all threads' copies
          Change(c, stage);
        }
      } else {
        BarrierWait(layout.Free(stage), phase);
        Make(c, stage);
      }
      BulkCopyFence();  // wgmma reads this thread's writes
      NamedBarrier(1, kGroup);
      if (thread == 0) BarrierArrive(layout.Full(stage));
      Scores(c, stage, weight);
      BulkCopyFence();
      NamedBarrier(1, kGroup);
      if (thread == 0) BarrierArrive(layout.ScoresFull(c));
      if constexpr (kSource != Source::kMade) {
        const int next = c + s.stages - 1;
        if (next < row.chunks) {
          BarrierWait(layout.Free(ahead_stage), ahead_phase);
          Copy(next, ahead_stage);
          CommitCopies();
        }
        if (++ahead_stage == s.stages) {
          ahead_stage = 0;
          ahead_phase ^= 1;
        }
      }
      if (++stage == s.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }

  const LinearPrefillParams& p;
  const Shape& s;
  const Layout<kGroups>& layout;
  const Row& row;
  const Slice slice;
  int head;
  int first_value;
  const IO* q;
  const IO* k;
  const IO* v;
  CopiedTile query_tile, key_tile, value_tile[kGroups];
};

}  // namespace linear_prefill
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_PREPARE_CUH_
