// The group that keeps the state. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_STATE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_STATE_CUH_

#include <cstdint>

#include "kernels/linear_attn/linear_chunks_shared.cuh"

namespace recurve {
namespace linear_chunks {

__device__ __forceinline__ void AddOuter(float (&state)[32],
                                         const uint32_t (&values)[4],
                                         uint32_t keys, int step) {
  wgmma::Multiply<true>(state, values, wgmma::ByColumns(keys, step), true);
}
__device__ __forceinline__ void AddOuter(float (&state)[64],
                                         const uint32_t (&values)[4],
                                         uint32_t keys, int step) {
  wgmma::Multiply128(state, values, wgmma::ByColumns(keys, step), true);
}

// Sᵀ, 64 columns by D features, is one accumulator. Before a chunk is added to
// it, the group that makes the chunk's outputs gets it as bfloat16.
template <int kKeyTiles>
struct Keeper {
  static constexpr int kCount = 32 * kKeyTiles;

  __device__ __forceinline__ Keeper(const Args& a,
                                    const Layout<kKeyTiles>& shared_layout,
                                    const Row& r, const Part& p)
      : args(a),
        layout(shared_layout),
        row(r),
        part(p),
        warp(threadIdx.x % kGroup / 32),
        lane(threadIdx.x % 32) {}

  // Calls f(register, row of the state, column) for what this thread has.
  template <typename F>
  __device__ __forceinline__ void ForState(F f) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i / 4 * 8 + lane % 4 * 2 + (i & 1);
      const int to = 64 * part.tile + 16 * warp + lane / 4 + (i & 2 ? 8 : 0);
      if (at < args.head_dim && to < args.value_dim) {
        f(i, int64_t{at} * args.value_dim + to);
      }
    }
  }

  __device__ __forceinline__ void Publish(uint32_t to,
                                          const float (&state)[kCount]) const {
    const int matrix = lane / 8;
    const int place = 16 * warp + matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (int b = 0; b < 8 * kKeyTiles; b += 2) {
      const uint32_t r[4] = {Bf16::Pack(state[4 * b], state[4 * b + 1]),
                             Bf16::Pack(state[4 * b + 2], state[4 * b + 3]),
                             Bf16::Pack(state[4 * b + 4], state[4 * b + 5]),
                             Bf16::Pack(state[4 * b + 6], state[4 * b + 7])};
      wgmma::StoreMatrices(to + b / 8 * wgmma::kTileBytes +
                               wgmma::PieceOffset(place, b % 8 + matrix / 2),
                           r);
    }
  }

  // ṽᵀ of chunk c, and for each eight tokens the two of this thread's powers
  // of the decay: λ^(tokens that come after).
  struct Values {
    uint32_t of[4][4];
    uint32_t after[8];
  };
  __device__ __forceinline__ void Take(int c, const Place& stage,
                                       Values& next) const {
    BarrierWait(layout.Full(stage.index), stage.phase);
    const uint32_t values = layout.Values(stage.index);
    const int matrix = lane / 8;
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const int token = 16 * step + matrix / 2 * 8 + lane % 8;
      LoadMatricesTransposed(
          next.of[step],
          values + wgmma::PieceOffset(token, 2 * warp + matrix % 2));
    }
    const int last = row.End(c) - 1 - lane % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      next.after[eight] = PowerPair(layout.pairs, max(last - 8 * eight, 0));
    }
  }
  // The factor. Into registers of its own: were they those that values are
  // loaded into, the compiler would wait for the products before.
  __device__ __forceinline__ static void Weigh(const Values& next,
                                               uint32_t (&value)[4][4]) {
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = eight % 2 * 2 + i;
        asm volatile("mul.rn.bf16x2 %0, %1, %2;"
                     : "=r"(value[eight / 2][at])
                     : "r"(next.of[eight / 2][at]), "r"(next.after[eight]));
      }
    }
  }

  // Leaves when everybody in the cluster has done with everything.
  __device__ __forceinline__ void Run(float* head_state, bool fresh,
                                      bool decays) const {
    float state[kCount] = {};
    if (!fresh) {
      ForState([&](int i, int64_t at) { state[i] = head_state[at]; });
    }
    Place stage;
    Place buffer;
    Values next;
    uint32_t value[4][4];
    Take(0, stage, next);
    Weigh(next, value);
    for (int c = 0; c < row.chunks; ++c) {
      const bool mine = part.Mine(c);
      if (mine) {
        BarrierWait(layout.StateFree(buffer.index), buffer.phase ^ 1);
        Publish(layout.State(buffer.index), state);
      }
      if (decays) {
        const float all = Power(layout.powers, row.End(c) - row.Begin(c));
#pragma unroll
        for (int i = 0; i < kCount; ++i) state[i] *= all;
      }
      wgmma::Hold(state);
      wgmma::Hold(value);
      wgmma::Fence();
#pragma unroll
      for (int step = 0; step < wgmma::kSteps; ++step) {
        AddOuter(state, value[step], layout.Keys(stage.index), step);
      }
      wgmma::Commit();
      // While that is under way: the state may be read, and the next values.
      if (mine) {
        BulkCopyFence();
        __syncwarp();
        if (lane == 0) BarrierArrive(layout.StateFull(buffer.index));
        buffer.Next(args.state_buffers);
      }
      const int used = stage.index;
      stage.Next(args.stages);
      const bool more = c + 1 < row.chunks;
      if (more) Take(c + 1, stage, next);
      wgmma::Wait<0>();
      wgmma::Hold(state);
      wgmma::Hold(value);
      ArriveEverywhere(layout.Free(used), part.turns);
      if (more) Weigh(next, value);
    }
    // Blocks that take turns have the same state, and all have read the one
    // before.
    if (part.turns > 1) linear_cluster::ClusterBarrier();
    if (part.turn == 0) {
      ForState([&](int i, int64_t at) { head_state[at] = state[i]; });
    }
  }

  const Args& args;
  const Layout<kKeyTiles>& layout;
  const Row& row;
  const Part& part;
  int warp;
  int lane;
};

}  // namespace linear_chunks
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_STATE_CUH_
