// The groups that multiply. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/linear_cluster.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_make.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

__device__ __forceinline__ void ReadFour(uint32_t from, uint32_t (&x)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])
               : "r"(from)
               : "memory");
}
// Four 8x8 matrices as LoadMatricesTransposed reads them.
__device__ __forceinline__ void StoreFourTransposed(uint32_t address,
                                                    const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], "
      "{%1,%2,%3,%4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
#endif
}

// A box of outputs, from shared memory; what is beyond a head's is left out.
__device__ __forceinline__ void StoreBox(uint32_t from, const CUtensorMap& map,
                                         int feature, int head, int token) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
      "[%1, {%2, %3, %4}], [%0];"
      "cp.async.bulk.commit_group;" ::"r"(from),
      "l"(&map), "r"(feature), "r"(head), "r"(token)
      : "memory");
#endif
}

// A group has 64 columns. Sᵀ, these columns by all features, is an accumulator
// and, once added up and rounded, the left factor of oᵀ = Sᵀ q̃ᵀ, without
// leaving its registers but for the sum.
template <Form kForm>
struct Multiplier {
  using P = Plan<kForm>;
  static constexpr int kSteps = 8 * P::kEncodings;  // of 16 features

  __device__ __forceinline__ Multiplier(const Args& a, const Layout<kForm>& l)
      : args(a),
        layout(l),
        rank(linear_cluster::ClusterRank()),
        group(Uniform(threadIdx.x / kGroup)),
        warp(Uniform(threadIdx.x % kGroup / 32)),
        lane(threadIdx.x % 32) {}

  // The parts of an item's S are on their way while outputs of the item before
  // are made, and its sums while S of the item after is.
  __device__ __forceinline__ void Run() {
    uint32_t mine[P::kSumPieces][4] = {};
#pragma unroll 1
    for (;; ++round) {
      const int place = round % kItemPlaces;
      BarrierWait(layout.ItemFull(place), round / kItemPlaces & 1);
      const bool ends = !Told(round).Works();
      uint32_t own[P::kPartPieces][4] = {};
      {
        float state[P::kEncodings][64] = {};
        const int tiles = Told(round).PartTiles();
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) AddTile(state);
        if (round > 0) BarrierWait(layout.SumsFull(), ~round & 1);
        if (!ends) SendParts(state, own);
      }
      if (round > 0) {
        uint32_t factor[kSteps][4];
        TakeSums(mine, factor);
        if (!ends) LetSend();
        const Item before = Told(round - 1);
        const int tiles = before.PartTiles();
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) OutTile(before, t, factor);
        FinishStore();
        WarpArrive(layout.ItemFree((round - 1) % kItemPlaces));
      }
      if (ends) break;
      AddUp(own, mine);
    }
  }
  // What the warp that copies told of: read anew wherever it is needed, as
  // there are no registers to spare.
  __device__ __forceinline__ Item Told(uint32_t which) const {
    uint32_t x[4];
    ReadFour(layout.ItemWords(which % kItemPlaces), x);
    Item item;
    item.slot = Uniform(static_cast<int>(x[0]));
    item.head = Uniform(static_cast<int>(x[1]));
    item.first_token = Uniform(static_cast<int>(x[2]));
    item.count = Uniform(static_cast<int>(x[3]));
    return item;
  }

  // ---- k̃ and q̃: made, or as they came ----

  __device__ __forceinline__ void WaitForFactor() const {
    BarrierWait(P::kMakes ? layout.Made(key.index) : layout.KeyFull(key.index),
                key.phase);
  }
  // 128 features of it.
  __device__ __forceinline__ uint32_t Factor(int encoding) const {
    return encoding == 0 ? layout.Key(key.index) : layout.Sine(sine.index);
  }
  __device__ __forceinline__ void ReleaseFactor() {
    WarpArrive(layout.KeyFree(key.index));
    key.Next(P::kKeyStages);
    if constexpr (P::kSineBuffers > 0) {
      WarpArrive(layout.SineFree(sine.index));
      sine.Next(P::kSineBuffers);
    }
  }

  // ---- S ----

  // Both factors are read from shared memory: vᵀ in registers would be 16 of
  // them, and S has most of what there are.
  __device__ __forceinline__ void AddTile(float (&state)[P::kEncodings][64]) {
    BarrierWait(layout.ValueFull(value.index), value.phase);
    WaitForFactor();
    const uint32_t columns = layout.Value(value.index) + group * kTileBytes;
    const uint64_t a = WgmmaUniform(wgmma::ByColumns(columns, 0));
    uint64_t b[P::kEncodings];
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) {
      b[e] = WgmmaUniform(wgmma::ByColumns(Factor(e), 0));
    }
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) WgmmaPin(state[e]);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < P::kEncodings; ++e) {
        wgmma::MultiplyColumns(state[e],
                               WgmmaAdvance(a, step * wgmma::kColumnStep),
                               WgmmaAdvance(b[e], step * wgmma::kColumnStep));
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) WgmmaPin(state[e]);
    WarpArrive(layout.ValueFree(value.index));
    value.Next(P::kValueStages);
    ReleaseFactor();
  }

  // ---- the sum of the parts: each block adds up a quarter of the features, in
  // the order of the blocks from its own on. What a thread sends goes to the
  // same thread of another block. ----

  // Where block `to` has what block `from` sends this thread.
  template <int kPieces>
  __device__ __forceinline__ uint32_t Mailbox(uint32_t boxes, int from,
                                              int to) const {
    const int place = from < to ? from : from - 1;
    return boxes + place * (kPieces * P::kPieceBytes) + threadIdx.x * 16;
  }
  // What block `part` adds up.
  static __device__ __forceinline__ const float* Part(
      const float (&state)[P::kEncodings][64], int part) {
    const int first = 4 * P::kShare * part;
    return &state[first / 64][first % 64];
  }
  // Word `j` of piece `i` of a part, as it is sent.
  static __device__ __forceinline__ uint32_t Piece(const float* x, int i,
                                                   int j) {
    if constexpr (P::kRoundParts) {
      return Bf16::Pack(x[8 * i + 2 * j], x[8 * i + 2 * j + 1]);
    } else {
      return __float_as_uint(x[4 * i + j]);
    }
  }
  static __device__ __forceinline__ void Send(uint32_t to, uint32_t barrier,
                                              uint32_t a, uint32_t b,
                                              uint32_t c, uint32_t d) {
    linear_cluster::SendFour(to, barrier, __uint_as_float(a),
                             __uint_as_float(b), __uint_as_float(c),
                             __uint_as_float(d));
  }
  // There is room: every block has sent the sums of the item before, after it
  // had read the parts. By rank, so that a part's registers are free once it
  // has been sent. This block's own part waits in registers, rounded like
  // others.
  __device__ __forceinline__ void SendParts(
      const float (&state)[P::kEncodings][64],
      uint32_t (&own)[P::kPartPieces][4]) {
    if (threadIdx.x == 0) BarrierExpect(layout.PartsFull(), P::kPartBytes);
    switch (rank) {
      case 0:
        SendPartsOf<0>(state, own);
        break;
      case 1:
        SendPartsOf<1>(state, own);
        break;
      case 2:
        SendPartsOf<2>(state, own);
        break;
      default:
        SendPartsOf<3>(state, own);
    }
    WgmmaPin(own);
  }
  template <int kRank>
  __device__ __forceinline__ void SendPartsOf(
      const float (&state)[P::kEncodings][64],
      uint32_t (&own)[P::kPartPieces][4]) const {
#pragma unroll
    for (int i = 0; i < P::kPartPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) own[i][j] = Piece(Part(state, kRank), i, j);
    }
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const int part = (kRank + n) % kParts;
      const uint32_t to = linear_cluster::InBlock(
          Mailbox<P::kPartPieces>(layout.parts, kRank, part), part);
      const uint32_t barrier =
          linear_cluster::InBlock(layout.PartsFull(), part);
#pragma unroll
      for (int i = 0; i < P::kPartPieces; ++i) {
        Send(to + i * P::kPieceBytes, barrier, Piece(Part(state, part), i, 0),
             Piece(Part(state, part), i, 1), Piece(Part(state, part), i, 2),
             Piece(Part(state, part), i, 3));
      }
    }
  }
  // Every block may send this one the sums of the next item: this warp has read
  // those of the one before it. (The loads were issued before the arrival,
  // whose way there and back with new sums is much longer than theirs.)
  __device__ __forceinline__ void LetSend() const {
    __syncwarp();
    for (int i = lane; i < kParts * kArrivingLanes; i += 32) {
      linear_cluster::ArriveInCluster(
          linear_cluster::InBlock(layout.SumsFree(), i % kParts));
    }
  }
  static __device__ __forceinline__ void AddPiece(const uint32_t (&x)[4], int i,
                                                  float (&sum)[4 * P::kShare]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (P::kRoundParts) {
        sum[8 * i + 2 * j] += Bf16::Low(x[j]);
        sum[8 * i + 2 * j + 1] += Bf16::High(x[j]);
      } else {
        sum[4 * i + j] += __uint_as_float(x[j]);
      }
    }
  }
  // The slot gets the sums, and everybody their rounded values.
  __device__ __forceinline__ void AddUp(
      const uint32_t (&own)[P::kPartPieces][4],
      uint32_t (&mine)[P::kSumPieces][4]) {
    float sum[4 * P::kShare] = {};
#pragma unroll
    for (int i = 0; i < P::kPartPieces; ++i) AddPiece(own[i], i, sum);
    BarrierWait(layout.PartsFull(), round & 1);
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const uint32_t from =
          Mailbox<P::kPartPieces>(layout.parts, (rank + n) % kParts, rank);
#pragma unroll
      for (int i = 0; i < P::kPartPieces; ++i) {
        uint32_t x[4];
        ReadFour(from + i * P::kPieceBytes, x);
        AddPiece(x, i, sum);
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * P::kSumPieces; ++i) {
      mine[i / 4][i % 4] =
          Bf16::Pack(sum[2 * i] * args.p.scale, sum[2 * i + 1] * args.p.scale);
    }
    if (round > 0) BarrierWait(layout.SumsFree(), ~round & 1);
    if (threadIdx.x == 0) BarrierExpect(layout.SumsFull(), P::kSumBytes);
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const int other = (rank + n) % kParts;
      const uint32_t to = linear_cluster::InBlock(
          Mailbox<P::kSumPieces>(layout.sums, rank, other), other);
      const uint32_t barrier =
          linear_cluster::InBlock(layout.SumsFull(), other);
#pragma unroll
      for (int i = 0; i < P::kSumPieces; ++i) {
        Send(to + i * P::kPieceBytes, barrier, mine[i][0], mine[i][1],
             mine[i][2], mine[i][3]);
      }
    }
    Keep(Told(round), sum);
  }
  // Everybody's sums as a factor.
  __device__ __forceinline__ void TakeSums(
      const uint32_t (&mine)[P::kSumPieces][4],
      uint32_t (&factor)[kSteps][4]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < P::kSumPieces; ++i) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = mine[i][j];
        if (part != rank) {
          ReadFour(Mailbox<P::kSumPieces>(layout.sums, part, rank) +
                       i * P::kPieceBytes,
                   x);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) factor[P::kSumPieces * part + i][j] = x[j];
      }
    }
  }
  __device__ __forceinline__ void Keep(
      const Item& item, const float (&sum)[4 * P::kShare]) const {
    const LinearNoncausalParams& p = args.p;
    if (p.states == nullptr) return;
    // Whole eights of features and of columns exist, or none of them.
    constexpr int kFeaturesEach = P::kEncodings * kFeatures / kParts;
    const int first = rank * kFeaturesEach;
    const int encoding = first / kFeatures;
    const int feature = first % kFeatures;
    const int64_t columns = args.value_dim;
    const int column = 64 * group + 16 * warp;
    if (column >= columns) return;
    const bool both = column + 8 < columns;
    float* row =
        p.states + int64_t{item.slot} * p.slot_stride +
        ((int64_t{item.head} * P::kEncodings + encoding) * args.head_dim +
         feature + lane % 4 * 2) *
            columns +
        column + lane / 4;
#pragma unroll
    for (int n = 0; n < P::kShare; ++n) {
      if (feature + 8 * n >= args.head_dim) break;
      row[0] = sum[4 * n];
      row[columns] = sum[4 * n + 1];
      if (both) {
        row[8] = sum[4 * n + 2];
        row[columns + 8] = sum[4 * n + 3];
      }
      row += 8 * columns;
      asm volatile("" : "+l"(row));  // not all addresses at once
    }
  }

  // ---- outputs ----

  __device__ __forceinline__ void OutTile(const Item& item, int tile,
                                          const uint32_t (&factor)[kSteps][4]) {
    float out[32];
    WaitForFactor();
    uint64_t queries[P::kEncodings];
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) {
      queries[e] = WgmmaUniform(wgmma::ByRows(Factor(e), 0));
    }
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma::Multiply<false>(
          out, factor[step],
          WgmmaAdvance(queries[step / 8],
                       step % 8 / wgmma::kSteps * kTileBytes +
                           step % wgmma::kSteps * wgmma::kRowStep),
          step > 0);
    }
    WgmmaCommit();
    FinishStore();
    BarrierWait(layout.ValueFull(value.index), value.phase);
    WgmmaWait<0>();
    WgmmaPin(out);
    ReleaseFactor();
    const uint32_t gates = layout.Value(value.index) + group * kTileBytes;
    if (args.p.g == nullptr) {
      Gate<false, false>(gates, out);
    } else if (args.p.g_activation == Activation::kSilu) {
      Gate<true, true>(gates, out);
    } else {
      Gate<true, false>(gates, out);
    }
    BulkCopyFence();
    NamedBarrier(1 + group, kGroup);
    if (args.p.out_type == ElementType::kBFloat16 &&
        item.Left(tile) >= kTokens) {
      if (warp == 0) {
        if (lane == 0 && 64 * group < args.value_dim) {
          StoreBox(gates, args.out, 64 * group, item.head, item.Token(tile));
        }
        stored = value.index;
      } else {
        WarpArrive(layout.ValueFree(value.index));
      }
    } else {
      Write(item, tile, gates);
      BulkCopyFence();
      WarpArrive(layout.ValueFree(value.index));
    }
    value.Next(P::kValueStages);
  }
  // The copy engine has read what it was last given: there may be gates again.
  __device__ __forceinline__ void FinishStore() {
    if (stored < 0) return;
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    WarpArrive(layout.ValueFree(stored));
    stored = -1;
  }
  // Gated outputs take the place of the gates.
  template <bool kGated, bool kSilu>
  __device__ __forceinline__ void Gate(uint32_t gates,
                                       const float (&out)[32]) const {
    const int matrix = lane / 8;
    const uint32_t at = gates + wgmma::PieceOffset(matrix / 2 * 8 + lane % 8,
                                                   2 * warp + matrix % 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 16 tokens
      uint32_t gate[4];
      if (kGated) LoadMatricesTransposed(gate, at + i * 2048);
      uint32_t rounded[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float low = out[8 * i + 2 * j];
        float high = out[8 * i + 2 * j + 1];
        if constexpr (kGated) {
          const uint32_t g = kSilu ? HalvePair(gate[j]) : gate[j];
          low *= kSilu ? SiluOfTwice(Bf16::Low(g)) : Bf16::Low(g);
          high *= kSilu ? SiluOfTwice(Bf16::High(g)) : Bf16::High(g);
        }
        rounded[j] = Bf16::Pack(low, high);
      }
      StoreFourTransposed(at + i * 2048, rounded);
    }
  }
  __device__ __forceinline__ void Write(const Item& item, int tile,
                                        uint32_t from) const {
    const int first = threadIdx.x % kGroup / 8;
    const int column = 64 * group + lane % 8 * 8;
    if (column >= args.value_dim) return;
    const int left = item.Left(tile) - first;
    const int64_t at = (int64_t{item.Token(tile)} + first) * args.p.out_stride +
                       int64_t{item.head} * args.value_dim + column;
    from += wgmma::PieceOffset(first, lane % 8);
    if (args.p.out_type == ElementType::kFloat32) {
      WriteRows(static_cast<float*>(args.p.out) + at, from, left);
    } else {
      WriteRows(static_cast<__nv_bfloat16*>(args.p.out) + at, from, left);
    }
  }
  template <typename T>
  __device__ __forceinline__ void WriteRows(T* to, uint32_t from,
                                            int left) const {
    constexpr int kRows = kGroup / 8;
#pragma unroll 4
    for (int i = 0; i < kTokens / kRows; ++i) {
      uint32_t x[4];
      ReadFour(from + i * (kRows * 128), x);
      if (kRows * i < left) Put(to, x);
      to += kRows * args.p.out_stride;
    }
  }
  static __device__ __forceinline__ void Put(__nv_bfloat16* to,
                                             const uint32_t (&x)[4]) {
    // The compiler would take this apart into four.
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  }
  static __device__ __forceinline__ void Put(float* to,
                                             const uint32_t (&x)[4]) {
    float4* const at = reinterpret_cast<float4*>(to);
    at[0] = make_float4(Bf16::Low(x[0]), Bf16::High(x[0]), Bf16::Low(x[1]),
                        Bf16::High(x[1]));
    at[1] = make_float4(Bf16::Low(x[2]), Bf16::High(x[2]), Bf16::Low(x[3]),
                        Bf16::High(x[3]));
  }

  const Args& args;
  const Layout<kForm>& layout;
  int rank;
  int group;
  int warp;
  int lane;
  Place key;
  Place sine;
  Place value;
  uint32_t round = 0;  // how many items have been added up
  int stored = -1;     // the stage whose outputs the copy engine reads
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
