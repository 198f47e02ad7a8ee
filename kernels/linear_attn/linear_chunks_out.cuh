// The group that makes outputs. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_OUT_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_OUT_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_chunks_shared.cuh"

namespace recurve {
namespace linear_chunks {

// Scores and outputs are accumulators of 64 tokens i by 64 tokens j or by 64
// columns: so scores become a factor without leaving their registers, and a
// power of the decay belongs to a row.
template <int kKeyTiles>
struct Writer {
  __device__ __forceinline__ Writer(const Args& a,
                                    const Layout<kKeyTiles>& shared_layout,
                                    const Row& r, const Part& p, int h)
      : args(a),
        layout(shared_layout),
        row(r),
        part(p),
        head(h),
        warp(threadIdx.x % kGroup / 32),
        lane(threadIdx.x % 32) {}

  // λ^(i−j) of this thread's scores, times the scale. In accumulator register
  // r, i − j is Ahead() less 8 · (Block(r) − 1) and less r & 1: 18 weights for
  // 32 scores.
  struct Weights {
    float of[9][2];
  };
  __device__ __forceinline__ int Ahead() const {
    return 16 * warp + lane / 4 - 2 * (lane % 4);
  }
  __device__ __forceinline__ static constexpr int Block(int r) {
    return r / 4 - (r >> 1 & 1) + 1;
  }

  // λ^(i−j) (q̃_i · k̃_j) for j <= i, as a factor: of warp kWarp, whose tokens
  // are 16 kWarp and on. The product with a later key may be infinite: it is
  // left out, not multiplied by 0. (A value that is not finite spoils all
  // outputs of its chunk, being multiplied by that 0.)
  template <int kWarp>
  __device__ __forceinline__ void WeighWarp(const Weights& weights,
                                            const float (&scores)[32],
                                            uint32_t (&factor)[16]) const {
    const int ahead = lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 4 * b + i;
        const int block = b - 2 * kWarp - i / 2;  // of 8 on from this thread's
        x[i] = block > 0 ? 0.0f : scores[r] * weights.of[Block(r)][i & 1];
        if (block == 0) x[i] = ahead - (i & 1) >= 0 ? x[i] : 0.0f;
      }
      factor[2 * b] = Bf16::Pack(x[0], x[1]);
      factor[2 * b + 1] = Bf16::Pack(x[2], x[3]);
    }
  }
  __device__ __forceinline__ void Weigh(const Weights& weights,
                                        const float (&scores)[32],
                                        uint32_t (&factor)[16]) const {
    switch (warp) {
      case 0:
        WeighWarp<0>(weights, scores, factor);
        break;
      case 1:
        WeighWarp<1>(weights, scores, factor);
        break;
      case 2:
        WeighWarp<2>(weights, scores, factor);
        break;
      default:
        WeighWarp<3>(weights, scores, factor);
        break;
    }
  }

  template <typename T>
  __device__ __forceinline__ T* Out(int c, int place, int at) const {
    return static_cast<T*>(args.p.out) +
           row.Token(c, place) * args.p.out_stride +
           int64_t{head} * args.value_dim + at;
  }
  // Outputs as they go to shared memory.
  __device__ __forceinline__ static void Round(const float (&out)[32],
                                               uint32_t (&rounded)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      rounded[i] = Bf16::Pack(out[2 * i], out[2 * i + 1]);
    }
  }
  // A warp's 16 tokens: turned round in shared memory into pieces of 16 bytes.
  __device__ __forceinline__ void Write(int c,
                                        const uint32_t (&rounded)[16]) const {
    const uint32_t staged = layout.outputs + warp * (wgmma::kTileBytes / 4);
    const int matrix = lane / 8;
    __syncwarp();  // what was staged last has been read
#pragma unroll
    for (int b = 0; b < 8; b += 2) {
      const uint32_t r[4] = {rounded[2 * b], rounded[2 * b + 1],
                             rounded[2 * b + 2], rounded[2 * b + 3]};
      wgmma::StoreMatrices(
          staged +
              wgmma::PieceOffset(matrix % 2 * 8 + lane % 8, b + matrix / 2),
          r);
    }
    __syncwarp();
    const int at = 64 * part.tile + lane % 8 * 8;
    const int first = 16 * warp + lane / 8;
    const int begin = row.Begin(c);
    const int end = row.End(c);
    __nv_bfloat16* to = Out<__nv_bfloat16>(c, first, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = first + 4 * i;
      uint32_t x[4];
      asm volatile(
          "ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
          : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
          : "r"(staged + wgmma::PieceOffset(lane / 8 + 4 * i, lane % 8)));
      if (place >= begin && place < end && at < args.value_dim) {
        // The compiler would take this apart into four.
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
      }
      to += 4 * args.p.out_stride;
    }
  }

  // As they are: the four lanes of a token have eight columns, 32 bytes.
  __device__ __forceinline__ void WriteFloats(int c,
                                              const float (&out)[32]) const {
    const int begin = row.Begin(c);
    const int end = row.End(c);
    const int first = 64 * part.tile + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int place = 16 * warp + lane / 4 + 8 * t;
      if (place < begin || place >= end) continue;
      float* const to = Out<float>(c, place, first);
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        if (first + 8 * b < args.value_dim) {
          *reinterpret_cast<float2*>(to + 8 * b) =
              make_float2(out[4 * b + 2 * t], out[4 * b + 2 * t + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void Run(float log2_decay) const {
    Weights weights;
#pragma unroll
    for (int b = 0; b < 9; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int ahead = max(Ahead() - 8 * (b - 1) - i, 0);
        weights.of[b][i] =
            args.p.scale * exp2f(log2_decay * static_cast<float>(ahead));
      }
    }
    Place query;
    Place buffer;
    Place stage = Advance(Place(), part.turn);
    if (part.turn < row.chunks) {
      uint32_t factor[16];
      Begin(stage, query, weights, factor);
      int c = part.turn;
      for (; c + part.turns < row.chunks; c += part.turns) {
        const Place next = Advance(stage, part.turns);
        Make<true>(c, stage, next, query, buffer, weights, factor);
        stage = next;
        query.Next(args.query_stages);
        buffer.Next(args.state_buffers);
      }
      Make<false>(c, stage, stage, query, buffer, weights, factor);
    }
    if (part.turns > 1) linear_cluster::ClusterBarrier();
  }

  __device__ __forceinline__ Place Advance(Place place, int count) const {
    for (int i = 0; i < count; ++i) place.Next(args.stages);
    return place;
  }

  // Starts q̃ k̃ᵀ.
  __device__ __forceinline__ void Score(const Place& stage, const Place& query,
                                        float (&scores)[32]) const {
    BarrierWait(layout.Full(stage.index), stage.phase);
    BarrierWait(layout.QueryFull(query.index), query.phase);
    const uint32_t queries = layout.Queries(query.index);
    const uint32_t keys = layout.Keys(stage.index);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < kKeyTiles * wgmma::kSteps; ++step) {
      const int tile = step / wgmma::kSteps;
      const int at = step % wgmma::kSteps;
      wgmma::Multiply(
          scores, wgmma::ByRows(queries + tile * wgmma::kTileBytes, at),
          wgmma::ByRows(keys + tile * wgmma::kTileBytes, at), step > 0);
    }
    wgmma::Commit();
  }

  // The first scores, as a factor.
  __device__ __forceinline__ void Begin(const Place& stage, const Place& query,
                                        const Weights& weights,
                                        uint32_t (&factor)[16]) const {
    float scores[32];
    Score(stage, query, scores);
    wgmma::Wait<0>();
    wgmma::Hold(scores);
    Weigh(weights, scores, factor);
  }

  // The outputs of chunk c, whose scores are `factor`; where there are more,
  // the factor then is that of the next, at stage `next`.
  template <bool kMore>
  __device__ __forceinline__ void Make(int c, const Place& stage,
                                       const Place& next, Place query,
                                       const Place& buffer,
                                       const Weights& weights,
                                       uint32_t (&factor)[16]) const {
    float out[32];
    float scores[32];
    const int used = query.index;
    const uint32_t queries = layout.Queries(used);
    const uint32_t states = layout.State(buffer.index);
    BarrierWait(layout.StateFull(buffer.index), buffer.phase);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < kKeyTiles * wgmma::kSteps; ++step) {
      const int tile = step / wgmma::kSteps;
      const int at = step % wgmma::kSteps;
      wgmma::Multiply(
          out, wgmma::ByRows(queries + tile * wgmma::kTileBytes, at),
          wgmma::ByRows(states + tile * wgmma::kTileBytes, at), step > 0);
    }
    wgmma::Commit();
    // λ^(tokens up to here and with it) of this thread's two tokens.
    const int ahead = 16 * warp + lane / 4 + 1 - row.Begin(c);
    const float upto[2] = {Power(layout.scaled, max(ahead, 0)),
                           Power(layout.scaled, max(ahead + 8, 0))};
    if constexpr (kMore) {
      query.Next(args.query_stages);
      Score(next, query, scores);
      wgmma::Wait<1>();
    } else {
      wgmma::Wait<0>();
    }
    wgmma::Hold(out);
    __syncwarp();
    if (lane == 0) {
      BarrierArrive(layout.StateFree(buffer.index));
      BarrierArrive(layout.QueryFree(used));
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) out[i] *= upto[i >> 1 & 1];
    wgmma::Hold(out);
    wgmma::Hold(factor);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const uint32_t a[4] = {factor[4 * step], factor[4 * step + 1],
                             factor[4 * step + 2], factor[4 * step + 3]};
      wgmma::Multiply<true>(
          out, a, wgmma::ByColumns(layout.Values(stage.index), step), true);
    }
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Hold(out);
    wgmma::Hold(factor);
    if constexpr (kMore) wgmma::Hold(scores);
    ArriveEverywhere(layout.Free(stage.index), part.turns);
    const bool floats = args.p.out_type == ElementType::kFloat32;
    uint32_t rounded[16];
    if (floats) {
      WriteFloats(c, out);
    } else {
      Round(out, rounded);
    }
    if constexpr (kMore) Weigh(weights, scores, factor);
    if (!floats) Write(c, rounded);
  }

  const Args& args;
  const Layout<kKeyTiles>& layout;
  const Row& row;
  const Part& part;
  int head;
  int warp;
  int lane;
};

}  // namespace linear_chunks
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_CHUNKS_OUT_CUH_
