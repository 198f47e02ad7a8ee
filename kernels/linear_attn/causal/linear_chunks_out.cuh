// Output warpgroups (Writers) of linear_chunks.cu. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_OUT_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_OUT_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/causal/linear_chunks_shared.cuh"

namespace recurve {
namespace linear_chunks {

// Makes outputs. Scores and outputs are accumulators of 64 tokens i by 64
// tokens j or by 64 columns: so scores become an operand without leaving their
// registers, and a power of the decay belongs to a row.
template <int kKeyTiles>
struct Writer {
  __device__ __forceinline__ Writer(const Args& a,
                                    const Layout<kKeyTiles>& shared_layout,
                                    const Row& r, const Part& p, int h, int w)
      : args(a),
        layout(shared_layout),
        row(r),
        part(p),
        head(h),
        writer(w),
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

  // λ^(i−j) (q̃_i · k̃_j) for j <= i, as an operand: of warp kWarp, whose
  // tokens are 16 kWarp and on. The product with a later key may be infinite:
  // it is left out, not multiplied by 0. (A non-finite value, multiplied by
  // that 0, spoils all outputs of its chunk.)
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
        const int block = b - 2 * kWarp - i / 2;  // of 8, beyond own
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
  __device__ __forceinline__ void GiveBack(const Place& query) const {
    __syncwarp();
    if (lane == 0) BarrierArrive(layout.QueryFree(query.index));
  }
  // Transposes a warp's 16 tokens into pieces of 16 bytes, in the memory of
  // their queries, which are then released.
  __device__ __forceinline__ void Turn(const float (&out)[32],
                                       const Place& query,
                                       uint32_t (&piece)[4][4]) const {
    const uint32_t staged =
        layout.Queries(query.index) + warp * (wgmma::kTileBytes / 4);
    const int matrix = lane / 8;
#pragma unroll
    for (int b = 0; b < 8; b += 2) {
      const uint32_t r[4] = {Bf16::Pack(out[4 * b], out[4 * b + 1]),
                             Bf16::Pack(out[4 * b + 2], out[4 * b + 3]),
                             Bf16::Pack(out[4 * b + 4], out[4 * b + 5]),
                             Bf16::Pack(out[4 * b + 6], out[4 * b + 7])};
      wgmma::StoreMatrices(
          staged +
              wgmma::PieceOffset(matrix % 2 * 8 + lane % 8, b + matrix / 2),
          r);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile(
          "ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
          : "=r"(piece[i][0]), "=r"(piece[i][1]), "=r"(piece[i][2]),
            "=r"(piece[i][3])
          : "r"(staged + wgmma::PieceOffset(lane / 8 + 4 * i, lane % 8))
          : "memory");
    }
    BulkCopyFence();  // the next queries are copied over it
    GiveBack(query);
  }
  __device__ __forceinline__ void Write(int c,
                                        const uint32_t (&piece)[4][4]) const {
    const int at = 64 * part.tile + lane % 8 * 8;
    const int first = 16 * warp + lane / 8;
    const int begin = row.Begin(c);
    const int end = row.End(c);
    __nv_bfloat16* to = Out<__nv_bfloat16>(c, first, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = first + 4 * i;
      if (place >= begin && place < end && at < args.value_dim) {
        // The compiler would split this into four.
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                     "r"(piece[i][0]), "r"(piece[i][1]), "r"(piece[i][2]),
                     "r"(piece[i][3])
                     : "memory");
      }
      to += 4 * args.p.out_stride;
    }
  }

  // Untransposed: the four lanes of a token have eight columns, 32 bytes.
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
        weights.of[b][i] = args.p.scale * Power(log2_decay, ahead);
      }
    }
    // λ^(tokens up to and including) of this thread's two tokens.
    const int ahead = 16 * warp + lane / 4 + 1;
    const auto scaled = [&](int n) {
      return args.p.scale * Power(log2_decay, max(n, 0));
    };
    float upto[2] = {scaled(ahead), scaled(ahead + 8)};
    float upto_first[2] = {scaled(ahead - row.lead),
                           scaled(ahead + 8 - row.lead)};
    HoldValues(upto);
    HoldValues(upto_first);
    // Chunks whose outputs the block makes alternate between its warpgroups.
    const int first = part.turn + part.turns * writer;
    Place stage = Advance(Place(), first, args.stages);
    Place query = Advance(Place(), writer, args.query_stages);
    Place buffer = Advance(Place(), writer, args.state_buffers);
    const int step = part.turns * kLinearChunksWriters;
    for (int c = first; c < row.chunks; c += step) {
      const float powers[2] = {c == 0 ? upto_first[0] : upto[0],
                               c == 0 ? upto_first[1] : upto[1]};
      Make(c, stage, query, buffer, weights, powers);
      stage = Advance(stage, step, args.stages);
      query = Advance(query, kLinearChunksWriters, args.query_stages);
      buffer = Advance(buffer, kLinearChunksWriters, args.state_buffers);
    }
    if (part.turns > 1) cluster::Meet();
  }

  __device__ __forceinline__ static Place Advance(Place place, int steps,
                                                  int count) {
    place.index += steps;
    if (place.index >= count) {
      place.index -= count;
      place.phase ^= 1;
    }
    return place;
  }

  // Queries (64 tokens) by 64 keys, or by 64 columns of a state, over all
  // features.
  __device__ __forceinline__ static void MultiplyQueries(uint32_t queries,
                                                         uint32_t others,
                                                         float (&sum)[32]) {
    const uint64_t a = WgmmaUniform(wgmma::ByRows(queries, 0));
    const uint64_t b = WgmmaUniform(wgmma::ByRows(others, 0));
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kKeyTiles * wgmma::kSteps; ++step) {
      const int at = step / wgmma::kSteps * wgmma::kTileBytes +
                     step % wgmma::kSteps * wgmma::kRowStep;
      wgmma::Multiply(sum, WgmmaAdvance(a, at), WgmmaAdvance(b, at), step > 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaPin(sum);
  }

  // The outputs of chunk c. Not every round of a stage has a chunk of this
  // warpgroup, and a barrier's parity only distinguishes a round from the
  // previous one. That one had arrived when the warpgroup made its last chunk,
  // or was that chunk: the state before it includes all earlier chunks.
  __device__ __forceinline__ void Make(int c, const Place& stage,
                                       const Place& query, const Place& buffer,
                                       const Weights& weights,
                                       const float (&upto)[2]) const {
    const bool floats = args.p.out_type == ElementType::kFloat32;
    const uint32_t queries = layout.Queries(query.index);
    uint32_t factor[16];
    BarrierWait(layout.QueryFull(query.index), query.phase);
    BarrierWait(layout.Full(stage.index), stage.phase);
    {
      float scores[32];
      MultiplyQueries(queries, layout.Keys(stage.index), scores);
      Weigh(weights, scores, factor);
    }
    float out[32];
    BarrierWait(layout.StateFull(buffer.index), buffer.phase);
    MultiplyQueries(queries, layout.State(buffer.index), out);
    __syncwarp();
    if (lane == 0) BarrierArrive(layout.StateFree(buffer.index));
    if (floats) GiveBack(query);
#pragma unroll
    for (int i = 0; i < 32; ++i) out[i] *= upto[i >> 1 & 1];
    const uint64_t values =
        WgmmaUniform(wgmma::ByColumns(layout.Values(stage.index), 0));
    WgmmaPin(out);
    WgmmaPin(factor);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const uint32_t a[4] = {factor[4 * step], factor[4 * step + 1],
                             factor[4 * step + 2], factor[4 * step + 3]};
      wgmma::Multiply<true>(
          out, a, WgmmaAdvance(values, step * wgmma::kColumnStep), true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaPin(out);
    WgmmaPin(factor);
    ArriveEverywhere(layout.Free(stage.index), part.turns);
    if (floats) {
      WriteFloats(c, out);
    } else {
      uint32_t piece[4][4];
      // All four warps have multiplied these queries.
      NamedBarrier(2 + writer, kGroup);
      Turn(out, query, piece);
      Write(c, piece);
    }
  }

  const Args& args;
  const Layout<kKeyTiles>& layout;
  const Row& row;
  const Part& part;
  int head;
  int writer;
  int warp;
  int lane;
};

}  // namespace linear_chunks
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_CHUNKS_OUT_CUH_
