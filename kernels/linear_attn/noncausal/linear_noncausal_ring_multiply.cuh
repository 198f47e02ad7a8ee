// Consumer warpgroups (Multipliers) of linear_noncausal_ring.cu: S and outputs.
// Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/linear_attn/noncausal/linear_noncausal_ring_make.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

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

// A warpgroup has 64 columns. Sᵀ, these columns by all features, is an
// accumulator and, once complete and rounded, the left operand of oᵀ = Sᵀ q̃ᵀ,
// without leaving its registers, except where blocks pass it on.
template <Form kForm>
struct Multiplier {
  using P = Plan<kForm>;
  static constexpr int kSteps = 8 * P::kEncodings;  // of 16 features

  __device__ __forceinline__ Multiplier(const Args& a, const Layout<kForm>& l)
      : args(a),
        layout(l),
        group(Uniform(threadIdx.x / kGroup)),
        warp(Uniform(threadIdx.x % kGroup / 32)) {}

  __device__ __forceinline__ void Run() {
#pragma unroll 1
    for (;;) {
      WaitForItem();
      if (!Told(layout, round).Works()) break;
      uint32_t factor[kSteps][4];
      MakeFactor(factor);
      if (P::kMakes && args.q_change == Change::kSoftmax) {
        OutputsOf<P::kMakes>(factor);
      } else {
        OutputsOf<false>(factor);
      }
      EndItem();
    }
    End();
  }
  __device__ __forceinline__ void WaitForItem() const {
    BarrierWait(layout.ItemFull(round % kItemPlaces), round / kItemPlaces & 1);
  }
  __device__ __forceinline__ void EndItem() {
    WarpArrive(layout.ItemFree(round % kItemPlaces));
    ++round;
  }
  // The sum of this item, and S as an operand for the outputs of the next, even
  // if there are none: with a branch the compiler would not keep both in
  // registers.
  __device__ __forceinline__ void MakeFactor(uint32_t (&factor)[kSteps][4]) {
    float state[P::kEncodings][64] = {};
    const int tiles = Told(layout, round).Tiles();
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) AddTile(state);
    EndItem();
    WaitForItem();
    if (tiles > 0 && args.p.states != nullptr) {
      LeaveState(state);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const x = &state[i / 8][i % 8 * 8 + 2 * j];
        factor[i][j] = Bf16::Pack(x[0] * args.p.scale, x[1] * args.p.scale);
      }
    }
    int load, store;
    ToldPlaces(layout, round, &load, &store);
    if (store >= 0) Store(store, factor);
    if (load >= 0) Load(load, factor);
  }

  // Registers are short if there are Makers.
  static __device__ __forceinline__ uint32_t Thread() {
    if constexpr (!P::kMakes) return threadIdx.x;
    return ThreadAnew();
  }
  static __device__ __forceinline__ uint32_t Lane() { return Thread() % 32; }

  // ---- k̃ and q̃: made, or as copied ----

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

  // Both operands are read from shared memory: vᵀ would take 16 registers, and
  // S has most of them.
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

  // ---- S passed between blocks: a thread reads what the same thread of
  // another block wrote ----

  __device__ __forceinline__ uint4* FactorIn(int place) const {
    return args.factors + place * int64_t{P::kFactorBytes / 16} +
           (4 * group + warp) * (32 * kSteps) + Lane();
  }
  // The Storer announces it, as that must wait: while memory is busy with
  // reads, a write takes tens of thousands of cycles.
  __device__ __forceinline__ void Store(
      int place, const uint32_t (&factor)[kSteps][4]) const {
    uint4* const to = FactorIn(place);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      asm volatile(
          "st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + 32 * i),
          "r"(factor[i][0]), "r"(factor[i][1]), "r"(factor[i][2]),
          "r"(factor[i][3])
          : "memory");
    }
    WarpArrive(layout.FactorLeft(place));
  }
  // Waits until it is there.
  __device__ __forceinline__ void Load(int place,
                                       uint32_t (&factor)[kSteps][4]) const {
    const uint32_t launch = ThisLaunch(layout);
    uint32_t seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(args.place_launches + place)
                   : "memory");
    } while (seen != launch);
    __syncwarp();
    const uint4* const from = FactorIn(place);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      // Bypasses L1, which may hold another launch's.
      asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(factor[i][0]), "=r"(factor[i][1]), "=r"(factor[i][2]),
                     "=r"(factor[i][3])
                   : "l"(from + 32 * i)
                   : "memory");
    }
  }
  // The last warp of all blocks ends the launch.
  __device__ __forceinline__ void End() const {
    if (Lane() != 0) return;
    const uint32_t warps = gridDim.x * kMultiplierWarps;
    if (atomicAdd(&args.launches->warps, 1) + 1 < warps) return;
    args.launches->warps = 0;
    ++args.launches->ended;
  }

  // Writes S to shared memory for the Storer, as the row's state. All warps
  // wait for, and release, all pieces; two write to each.
  __device__ __forceinline__ void LeaveState(
      const float (&state)[P::kEncodings][64]) {
    const int pieces = StatePieces(args);
    // A thread has two of each eight features, and two of sixteen columns.
    const uint32_t feature = Lane() % 4 * 2;
    const uint32_t column = warp % 2 * 16 + Lane() / 4;
    uint32_t to[2][2];  // swizzled, as the copy engine reads it
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        to[j][c] = wgmma::PieceOffset(feature + j, column / 4 + 2 * c) +
                   column % 4 * 4;
      }
    }
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) {
#pragma unroll 1
      for (int i = 0; i < pieces; ++i) {
        BarrierWait(layout.ValueFull(value.index), value.phase);
        if (i == 2 * group + warp / 2) {
          const uint32_t place = layout.Value(value.index);
#pragma unroll
          for (int n = 0; n < 16; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              StoreFloat(place + n * 1024 + to[j][0], state[e][4 * n + j]);
              StoreFloat(place + n * 1024 + to[j][1], state[e][4 * n + 2 + j]);
            }
          }
          BulkCopyFence();
        }
        WarpArrive(layout.OutFull(value.index));
        value.Next(P::kValueStages);
      }
    }
  }
  static __device__ __forceinline__ void StoreFloat(uint32_t to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  }

  // ---- outputs ----

  template <bool kScaled>
  __device__ __forceinline__ void OutputsOf(
      const uint32_t (&factor)[kSteps][4]) {
    if (args.p.g == nullptr) {
      Outputs<kScaled, false, false>(factor);
    } else if (args.p.g_activation == Activation::kSilu) {
      Outputs<kScaled, true, true>(factor);
    } else {
      Outputs<kScaled, true, false>(factor);
    }
  }
  template <bool kScaled, bool kGated, bool kSilu>
  __device__ __forceinline__ void Outputs(const uint32_t (&factor)[kSteps][4]) {
    const Item told = Told(layout, round);
    int tile = told.begin;
    const int end = told.end;
    // Tiles that the copy engine stores.
    const int whole = args.p.out_type == ElementType::kBFloat16
                          ? min(end, told.count / kTokens)
                          : 0;
    const uint32_t lane = Lane();
    // Among 16 tokens, the piece that this thread reads and writes.
    const uint32_t piece =
        group * kTileBytes +
        wgmma::PieceOffset(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll 1
    for (; tile < end; ++tile) {
      OutTile<kScaled, kGated, kSilu>(factor,
                                      layout.Value(value.index) + piece);
      BulkCopyFence();
      if (tile < whole) {
        WarpArrive(layout.OutFull(value.index));
      } else {
        NamedBarrier(1 + group, kGroup);
        Write(Told(layout, round), tile,
              layout.Value(value.index) + group * kTileBytes);
        BulkCopyFence();
        WarpArrive(layout.ValueFree(value.index));
      }
      value.Next(P::kValueStages);
    }
  }
  // Gated outputs replace the gates, at `at` and each 16 tokens on.
  template <bool kScaled, bool kGated, bool kSilu>
  __device__ __forceinline__ void OutTile(const uint32_t (&factor)[kSteps][4],
                                          uint32_t at) {
    float out[32];
    uint64_t queries[P::kEncodings];
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) {
      queries[e] = WgmmaUniform(wgmma::ByRows(Factor(e), 0));
    }
    WaitForFactor();
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
    BarrierWait(layout.ValueFull(value.index), value.phase);
    // All are read before the first is needed, during the products.
    uint32_t gate[4][4];
    if constexpr (kGated) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        LoadMatricesTransposed(gate[i], at + i * 2048);
    }
    float scale[16];  // of two neighbouring tokens of each eight
    if constexpr (kScaled) ReadScales(scale);
    WgmmaWait<0>();
    WgmmaPin(out);
    ReleaseFactor();
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < 32; ++i) out[i] *= scale[i / 4 * 2 + i % 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Gate<kGated, kSilu>(gate[i], &out[8 * i], at + i * 2048);
    }
  }
  __device__ __forceinline__ void ReadScales(float (&scale)[16]) const {
    const uint32_t from = layout.Scale(key.index, Lane() % 4 * 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(scale[2 * i]), "=f"(scale[2 * i + 1])
                   : "r"(from + 32 * i)
                   : "memory");
    }
  }
  template <bool kGated, bool kSilu>
  static __device__ __forceinline__ void Gate(const uint32_t (&gate)[4],
                                              const float* out, uint32_t to) {
    uint32_t rounded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low = out[2 * j];
      float high = out[2 * j + 1];
      if constexpr (kGated) {
        const uint32_t g = kSilu ? HalvePair(gate[j]) : gate[j];
        low *= kSilu ? SiluOfTwice(Bf16::Low(g)) : Bf16::Low(g);
        high *= kSilu ? SiluOfTwice(Bf16::High(g)) : Bf16::High(g);
      }
      rounded[j] = Bf16::Pack(low, high);
    }
    StoreFourTransposed(to, rounded);
  }
  __device__ __forceinline__ void Write(const Item& item, int tile,
                                        uint32_t from) const {
    const int first = Thread() % kGroup / 8;
    const int column = 64 * group + Thread() % 8 * 8;
    if (column >= args.value_dim) return;
    const int left = item.Left(tile) - first;
    const int64_t at = (int64_t{item.Token(tile)} + first) * args.p.out_stride +
                       int64_t{item.head} * args.value_dim + column;
    from += wgmma::PieceOffset(first, Thread() % 8);
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
    // The compiler would split this into four.
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
  int group;
  int warp;
  Place key;
  Place sine;
  Place value;
  uint32_t round = 0;  // the current item
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
