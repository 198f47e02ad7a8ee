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
        group(threadIdx.x / kGroup),
        warp(threadIdx.x % kGroup / 32),
        lane(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run() {
    ForItems(args, [&](const Item& item) {
      if (item.count > 0 && item.sink) WriteZeros(item);
      if (!item.Works()) return;
      uint32_t factor[kSteps][4];
      {
        float state[P::kEncodings][64] = {};
        for (int t = 0; t < item.part_tiles; ++t) AddTile(state);
        AddUp(item, state, factor);
      }
      for (int t = 0; t < item.part_tiles; ++t) OutTile(item, t, factor);
    });
  }

  // ---- k̃ and q̃: made, or as they came ----

  __device__ __forceinline__ uint32_t WaitForFactor() const {
    if constexpr (P::kMakes) {
      BarrierWait(layout.MadeFull(key.index), key.phase);
      return layout.Made(key.index);
    } else {
      BarrierWait(layout.KeyFull(key.index), key.phase);
      return layout.Key(key.index);
    }
  }
  __device__ __forceinline__ void ReleaseFactor() {
    WarpArrive(P::kMakes ? layout.MadeFree(key.index)
                         : layout.KeyFree(key.index));
    key.Next(P::kMakes ? P::kMadeBuffers : P::kKeyStages);
  }

  // ---- S ----

  // vᵀ leaves shared memory once, for all features.
  __device__ __forceinline__ void AddTile(float (&state)[P::kEncodings][64]) {
    BarrierWait(layout.ValueFull(value.index), value.phase);
    const uint32_t columns = layout.Value(value.index) + group * kTileBytes;
    const int matrix = lane / 8;
    uint32_t values[wgmma::kSteps][4];
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      LoadMatricesTransposed(
          values[step],
          columns + wgmma::PieceOffset(16 * step + matrix / 2 * 8 + lane % 8,
                                       2 * warp + matrix % 2));
    }
    const uint32_t keys = WaitForFactor();
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) wgmma::Hold(state[e]);
    wgmma::Hold(values);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < P::kEncodings; ++e) {
        wgmma::Multiply128(
            state[e], values[step],
            wgmma::ByColumns(keys + e * kRawBytes, step, kTileBytes), true);
      }
    }
    wgmma::Commit();
    WarpArrive(layout.ValueFree(value.index));
    value.Next(P::kValueStages);
    wgmma::Wait<0>();
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) wgmma::Hold(state[e]);
    wgmma::Hold(values);
    ReleaseFactor();
  }

  // Tells every block that this warp may be sent to, and waits until all may.
  __device__ __forceinline__ void MeetCluster() {
    __syncwarp();
    for (int i = lane; i < kParts * kArrivingLanes; i += 32) {
      linear_cluster::ArriveInCluster(
          linear_cluster::InBlock(layout.Ready(), i % kParts));
    }
    BarrierWait(layout.Ready(), ready_phase);
    ready_phase ^= 1;
  }
  // Where block `to` has what block `from` sends this thread.
  __device__ __forceinline__ uint32_t Mailbox(int from, int to,
                                              int bytes) const {
    const int place = from < to ? from : from - 1;
    return layout.region + place * (bytes * kMultipliers) + threadIdx.x * 16;
  }

  // Adds up the parts of S, each block a quarter of the features, in the order
  // of the blocks from its own on; what a thread sends goes to the same thread
  // of another block. The slot gets the sums, `factor` their rounded values.
  __device__ __forceinline__ void AddUp(const Item& item,
                                        const float (&state)[P::kEncodings][64],
                                        uint32_t (&factor)[kSteps][4]) {
    constexpr int kShare = P::kShare;
    constexpr int kBytes = kShare * 16;
    MeetCluster();
    if (threadIdx.x == 0) BarrierExpect(layout.Received(), P::kReceiveBytes);
#pragma unroll
    for (int other = 0; other < kParts; ++other) {
      if (other == rank) continue;
      const float* x = Part(state, other);
      const uint32_t to =
          linear_cluster::InBlock(Mailbox(rank, other, kBytes), other);
      const uint32_t barrier =
          linear_cluster::InBlock(layout.Received(), other);
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        linear_cluster::SendFour(to + i * (kMultipliers * 16), barrier,
                                 x[4 * i], x[4 * i + 1], x[4 * i + 2],
                                 x[4 * i + 3]);
      }
    }
    float sum[4 * kShare];
#pragma unroll
    for (int i = 0; i < 4 * kShare; ++i) {
      sum[i] = rank < 2 ? (rank == 0 ? Part(state, 0)[i] : Part(state, 1)[i])
                        : (rank == 2 ? Part(state, 2)[i] : Part(state, 3)[i]);
    }
    wgmma::Hold(sum);
    BarrierWait(layout.Received(), received_phase);
    received_phase ^= 1;
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const uint32_t from = Mailbox((rank + n) % kParts, rank, kBytes);
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        uint32_t x[4];
        ReadFour(from + i * (kMultipliers * 16), x);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[4 * i + j] += __uint_as_float(x[j]);
      }
    }
    Share(item, sum, factor);
  }
  // What block `part` adds up.
  static __device__ __forceinline__ const float* Part(
      const float (&state)[P::kEncodings][64], int part) {
    const int first = 4 * P::kShare * part;
    return &state[first / 64][first % 64];
  }
  // Everybody's sums as a factor.
  __device__ __forceinline__ void Share(const Item& item,
                                        const float (&sum)[4 * P::kShare],
                                        uint32_t (&factor)[kSteps][4]) {
    constexpr int kShare = P::kFactorShare;
    constexpr int kBytes = kShare * 16;
    uint32_t mine[kShare][4];
#pragma unroll
    for (int i = 0; i < 4 * kShare; ++i) {
      mine[i / 4][i % 4] =
          Bf16::Pack(sum[2 * i] * args.p.scale, sum[2 * i + 1] * args.p.scale);
    }
    MeetCluster();  // all have read what this takes the place of
    if (threadIdx.x == 0) {
      BarrierExpect(layout.Received(), P::kReceiveBytes / 2);
    }
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const int other = (rank + n) % kParts;
      const uint32_t to =
          linear_cluster::InBlock(Mailbox(rank, other, kBytes), other);
      const uint32_t barrier =
          linear_cluster::InBlock(layout.Received(), other);
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        linear_cluster::SendFour(
            to + i * (kMultipliers * 16), barrier, __uint_as_float(mine[i][0]),
            __uint_as_float(mine[i][1]), __uint_as_float(mine[i][2]),
            __uint_as_float(mine[i][3]));
      }
    }
    Keep(item, sum);  // while they come
    BarrierWait(layout.Received(), received_phase);
    received_phase ^= 1;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = mine[i][j];
        if (part != rank) {
          ReadFour(Mailbox(part, rank, kBytes) + i * (kMultipliers * 16), x);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) factor[kShare * part + i][j] = x[j];
      }
    }
    if (P::kMakes) {
      BarrierWait(layout.Resumed(), resumed_phase ^ 1);  // of the item before
      resumed_phase ^= 1;
      WarpArrive(layout.Summed());
    }
  }
  __device__ __forceinline__ void Keep(
      const Item& item, const float (&sum)[4 * P::kShare]) const {
    const LinearNoncausalParams& p = args.p;
    if (p.states == nullptr) return;
    constexpr int kFeaturesEach = P::kEncodings * kFeatures / kParts;
    const int first = rank * kFeaturesEach;
    const int encoding = first / kFeatures;
    const int column = 64 * group + 16 * warp + lane / 4;
    const int feature = first % kFeatures + lane % 4 * 2;
    const int columns = args.value_dim;
    const bool exists[2] = {column < columns, column + 8 < columns};
    float* to =
        p.states + int64_t{p.slots[item.row]} * p.slot_stride +
        ((int64_t{item.head} * P::kEncodings + encoding) * args.head_dim +
         feature) *
            columns +
        column;
#pragma unroll
    for (int n = 0; n < P::kShare; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (feature + 8 * n + j < args.head_dim) {
          float* const row = to + j * columns;
          if (exists[0]) row[0] = sum[4 * n + j];
          if (exists[1]) row[8] = sum[4 * n + 2 + j];
        }
      }
      to += 8 * columns;
      asm volatile("" : "+l"(to));  // not all addresses at once
    }
  }

  // ---- outputs ----

  __device__ __forceinline__ void OutTile(const Item& item, int tile,
                                          const uint32_t (&factor)[kSteps][4]) {
    float out[32];
    const uint32_t queries = WaitForFactor();
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma::Multiply<false>(
          out, factor[step],
          wgmma::ByRows(queries + step / wgmma::kSteps * kTileBytes,
                        step % wgmma::kSteps),
          step > 0);
    }
    wgmma::Commit();
    BarrierWait(layout.ValueFull(value.index), value.phase);
    wgmma::Wait<0>();
    wgmma::Hold(out);
    ReleaseFactor();
    const uint32_t gates = layout.Value(value.index) + group * kTileBytes;
    if (args.p.g == nullptr) {
      Gate<false, false>(gates, out);
    } else if (args.p.g_activation == Activation::kSilu) {
      Gate<true, true>(gates, out);
    } else {
      Gate<true, false>(gates, out);
    }
    NamedBarrier(1 + group, kGroup);
    Write(item, tile, gates);
    BulkCopyFence();
    WarpArrive(layout.ValueFree(value.index));
    value.Next(P::kValueStages);
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
    const int64_t at = (item.Token(tile) + first) * args.p.out_stride +
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
#pragma unroll
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

  // The outputs of a row in the sink, of this part.
  __device__ __forceinline__ void WriteZeros(const Item& item) const {
    if (args.p.out_type == ElementType::kFloat32) {
      WriteZeros(item, static_cast<float*>(args.p.out));
    } else {
      WriteZeros(item, static_cast<__nv_bfloat16*>(args.p.out));
    }
  }
  template <typename T>
  __device__ __forceinline__ void WriteZeros(const Item& item, T* out) const {
    const int tokens = min(item.part_tiles * kTokens, item.Left(0));
    for (int64_t i = threadIdx.x; i < int64_t{tokens} * args.value_dim;
         i += kMultipliers) {
      out[(item.Token(0) + i / args.value_dim) * args.p.out_stride +
          int64_t{item.head} * args.value_dim + i % args.value_dim] = T(0.0f);
    }
  }

  const Args& args;
  const Layout<kForm>& layout;
  int rank;
  int group;
  int warp;
  int lane;
  Place key;
  Place value;
  uint32_t ready_phase = 0;
  uint32_t received_phase = 0;
  uint32_t resumed_phase = 0;
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
