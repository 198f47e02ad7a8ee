// State warpgroup (Keeper) of linear_chunks.cu. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_STATE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_STATE_CUH_

#include <cstdint>

#include "kernels/linear_attn/causal/linear_chunks_shared.cuh"

namespace recurve {
namespace linear_chunks {

// Keeps Sᵀ, 64 columns by D features, in registers. A chunk's update is a
// separate accumulator, so that its products do not wait for the state, nor the
// state's publication for them.
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

  // Calls f(register, place in the head's state) for this thread's elements. A
  // state that fills its tiles needs no check of each register: checks would be
  // a quarter of the kernel's code, and code that runs once is slow.
  template <typename F>
  __device__ __forceinline__ void ForState(float* head_state, F f) const {
    const int columns = args.value_dim;
    const int feature = lane % 4 * 2;
    const int column = 64 * part.tile + 16 * warp + lane / 4;
    float* const first = head_state + feature * columns + column;
    if (args.head_dim == 64 * kKeyTiles && 64 * (part.tile + 1) <= columns) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        f(i, first + (i / 4 * 8 + (i & 1)) * columns + (i & 2 ? 8 : 0));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int down = i / 4 * 8 + (i & 1);
        const int right = i & 2 ? 8 : 0;
        if (feature + down < args.head_dim && column + right < columns) {
          f(i, first + down * columns + right);
        }
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

  // λ^(number of later tokens) of this thread's two of each eight tokens of a
  // chunk; `last` tokens come after the first of them.
  __device__ __forceinline__ static void PowersAfter(float log2_decay, int last,
                                                     uint32_t (&after)[8]) {
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      const int n = max(last - 8 * eight, 0);
      after[eight] =
          Bf16::Pack(Power(log2_decay, n), Power(log2_decay, max(n - 1, 0)));
    }
  }

  // vᵀ of the chunk at `stage`.
  __device__ __forceinline__ void Take(const Place& stage,
                                       uint32_t (&next)[4][4]) const {
    BarrierWait(layout.Full(stage.index), stage.phase);
    const uint32_t values = layout.Values(stage.index);
    const int matrix = lane / 8;
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const int token = 16 * step + matrix / 2 * 8 + lane % 8;
      LoadMatricesTransposed(
          next[step],
          values + wgmma::PieceOffset(token, 2 * warp + matrix % 2));
    }
  }
  // The operand. In registers of its own: if values were loaded into them, the
  // compiler would wait for the previous products.
  __device__ __forceinline__ static void Weigh(const uint32_t (&next)[4][4],
                                               const uint32_t (&after)[8],
                                               uint32_t (&value)[4][4]) {
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = eight % 2 * 2 + i;
        asm volatile("mul.rn.bf16x2 %0, %1, %2;"
                     : "=r"(value[eight / 2][at])
                     : "r"(next[eight / 2][at]), "r"(after[eight]));
      }
    }
  }

  // Starts ṽᵀ k̃ of the chunk at `stage`.
  __device__ __forceinline__ void Multiply(int stage, uint32_t (&value)[4][4],
                                           float (&added)[kCount]) const {
    const uint64_t keys = WgmmaUniform(wgmma::ByColumns(layout.Keys(stage), 0));
    WgmmaPin(added);
    WgmmaPin(value);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply<true>(added, value[step],
                            WgmmaAdvance(keys, step * wgmma::kColumnStep),
                            step > 0);
    }
    WgmmaCommit();
  }

  // Returns when all blocks of the cluster are done.
  __device__ __forceinline__ void Run(float* head_state, bool fresh,
                                      float log2_decay) const {
    float state[kCount] = {};
    if (!fresh) {
      ForState(head_state, [&](int i, float* place) { state[i] = *place; });
    }
    uint32_t after[8];
    const int begin = lane % 4 * 2 + 1;  // from the end of a chunk
    PowersAfter(log2_decay, (row.chunks == 1 ? row.End(0) : kChunk) - begin,
                after);
    // λ^(tokens) of the first chunk, the last one, and those between them.
    float all[3] = {
        Power(log2_decay, row.End(0) - row.Begin(0)),
        Power(log2_decay, row.End(row.chunks - 1) - row.Begin(row.chunks - 1)),
        Power(log2_decay, kChunk)};
    HoldValues(all);
    Place stage;
    Place buffer;
    uint32_t next[4][4];
    uint32_t value[4][4];
    float added[kCount];
    Take(stage, next);
    Weigh(next, after, value);
    Multiply(stage.index, value, added);
    for (int c = 0;; ++c) {
      // During the chunk's products the previous state is published, and the
      // next values arrive.
      if (part.Mine(c)) {
        BarrierWait(layout.StateFree(buffer.index), buffer.phase ^ 1);
        Publish(layout.State(buffer.index), state);
        BulkCopyFence();
        __syncwarp();
        if (lane == 0) BarrierArrive(layout.StateFull(buffer.index));
        buffer.Next(args.state_buffers);
      }
      const int used = stage.index;
      stage.Next(args.stages);
      const bool more = c + 1 < row.chunks;
      if (more) {
        Take(stage, next);
        if (c + 2 == row.chunks && row.End(c + 1) < kChunk) {
          PowersAfter(log2_decay, row.End(c + 1) - begin, after);
        }
      }
      const float lambda = !more ? all[1] : c == 0 ? all[0] : all[2];
      WgmmaWait<0>();
      WgmmaPin(added);
      WgmmaPin(value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        state[i] = fmaf(state[i], lambda, added[i]);
      }
      ArriveEverywhere(layout.Free(used), part.turns);
      if (!more) break;
      Weigh(next, after, value);
      Multiply(stage.index, value, added);
    }
    // Blocks that take turns have the same state, and all have read the old
    // one.
    if (part.turns > 1) cluster::Meet();
    if (part.turn == 0) {
      ForState(head_state, [&](int i, float* place) { *place = state[i]; });
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

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_STATE_CUH_
