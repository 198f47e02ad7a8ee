// The group that makes k̃ and q̃. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MAKE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MAKE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_shared.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"

namespace recurve {
namespace linear_ring {

// silu of twice h: x / (1 + e^−x) is x/2 + x/2 · tanh(x/2), with one special
// function in place of two.
__device__ __forceinline__ float SiluOfTwice(float h) {
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
  return fmaf(h, t, h);
}
// Halves of a pair, exact but for the smallest numbers.
__device__ __forceinline__ uint32_t HalvePair(uint32_t pair) {
  uint32_t half;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(half) : "r"(pair), "r"(0x3f003f00u));
  return half;
}

// A thread has eight features of every eighth token: a piece of a row.
template <Form kForm>
struct Maker {
  using P = Plan<kForm>;
  static constexpr bool kCosine = kForm == Form::kCosine;
  static constexpr int kRows = kMakers / 16;  // a pass
  static constexpr int kPasses = kTokens / kRows;
  // cos and sin of angles go on by the Chebyshev recurrence, which is begun
  // anew, exactly, after so many tiles: its error grows with the square, to at
  // most 6e-4 (7e-5 in the mean), of which bfloat16 then takes 2e-3 (1e-3).
  static constexpr int kFreshTiles = 16;

  __device__ __forceinline__ Maker(const Args& a, const Layout<kForm>& l)
      : args(a),
        layout(l),
        thread(threadIdx.x - kMultipliers),
        feature(thread % 16 * 8),
        row(thread / 16),
        at(thread % 16 / 8 * kTileBytes + wgmma::PieceOffset(row, thread % 8)),
        exists(feature < a.head_dim) {}

  __device__ __forceinline__ void Run() {
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      BarrierWait(layout.ItemFull(round % kItemPlaces),
                  round / kItemPlaces & 1);
      MakeAll(round, args.k_change);
      if (round > 0) {
        MakeAll(round - 1, args.q_change);
        WarpArrive(layout.ItemFree((round - 1) % kItemPlaces));
      }
      if (!Told(layout, round).Works()) break;
    }
  }
  __device__ __forceinline__ void MakeAll(uint32_t round, Change change) {
    switch (change) {
      case Change::kNone:
        MakeAllOf<Change::kNone>(round);
        break;
      case Change::kSilu:
        MakeAllOf<Change::kSilu>(round);
        break;
      case Change::kSoftmax:
        MakeAllOf<Change::kSoftmax>(round);
        break;
    }
  }
  template <Change kChange>
  __device__ __forceinline__ void MakeAllOf(uint32_t round) {
    const Item item = Told(layout, round);
    if (!item.Works()) return;
    if (kCosine) UseTurnsOf(item.head);
    const int tiles = item.PartTiles();
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      if (kCosine && t % kFreshTiles == 0) {
        BeginWaves(ToldPosition(layout, round) +
                   (Told(layout, round).FirstTile() + t) * kTokens + row);
      }
      BarrierWait(layout.KeyFull(key.index), key.phase);
      Make<kChange>(layout.Key(key.index) + at, layout.Sine(sine.index) + at);
      BulkCopyFence();  // wgmma reads what this thread wrote
      WarpArrive(layout.Made(key.index));
      key.Next(P::kKeyStages);
      if (kCosine) sine.Next(P::kSineBuffers);
    }
  }

  // ---- angles ----

  // A thread for each feature brings what is known of its angles to shared
  // memory.
  __device__ __forceinline__ void UseTurnsOf(int head) {
    if (turned_head == head ||
        (turned_head >= 0 && args.p.phase_head_stride == 0)) {
      return;
    }
    turned_head = head;
    NamedBarrier(3, kMakers);  // nobody reads those of the head before
    const uint64_t turn =
        thread < args.head_dim
            ? args.p.phase_steps[head * args.p.phase_head_stride + thread]
            : 0;
    float cos, sin;
    PhaseCosSin(turn, kRows, &cos, &sin);
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(layout.Turn(thread)), "l"(turn)
                 : "memory");
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(layout.Step(thread)),
                 "f"(2.0f * cos)
                 : "memory");
    NamedBarrier(3, kMakers);
  }
  __device__ __forceinline__ void BeginWaves(int64_t position) {
    const uint64_t at = static_cast<uint64_t>(position);
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(twice[j]), "=f"(twice[j + 1]), "=f"(twice[j + 2]),
                     "=f"(twice[j + 3])
                   : "r"(layout.Step(feature + j)));
    }
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint64_t turn[2];
      asm volatile("ld.shared.v2.b64 {%0, %1}, [%2];"
                   : "=l"(turn[0]), "=l"(turn[1])
                   : "r"(layout.Turn(feature + j)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        linear_prefill::FastCosSin(static_cast<uint32_t>(turn[i] * at >> 32),
                                   &cos[0][j + i], &sin[0][j + i]);
        linear_prefill::FastCosSin(
            static_cast<uint32_t>(turn[i] * (at - kRows) >> 32), &cos[1][j + i],
            &sin[1][j + i]);
      }
    }
  }
  // From those of a pass, and the one before it, to the next, in its place.
  __device__ __forceinline__ void TurnWaves(int pass) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float& c = cos[(pass + 1) % 2][j];
      float& s = sin[(pass + 1) % 2][j];
      c = fmaf(twice[j], cos[pass % 2][j], -c);
      s = fmaf(twice[j], sin[pass % 2][j], -s);
    }
  }

  // ---- tiles ----

  // A loop: with all passes unrolled the code is three times as long, and no
  // faster.
  template <Change kChange>
  __device__ __forceinline__ void Make(uint32_t tile, uint32_t sines) {
    // Softmax looks at more tokens at a time, as lanes wait for each other.
    constexpr int kBatch = kChange == Change::kSoftmax ? 4 : 2;
    uint32_t next[kBatch][4];
    LoadSome(tile, next);
    if (kCosine) BarrierWait(layout.SineFree(sine.index), sine.phase ^ 1);
#pragma unroll 1
    for (int left = kPasses; left > 0; left -= kBatch) {
      uint32_t word[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) word[i][j] = next[i][j];
      }
      const uint32_t at = tile;
      tile += kBatch * kRows * 128;
      if (left > kBatch) LoadSome(tile, next);
      float x[kBatch][8];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) Unpack<kChange>(word[i], x[i]);
      if constexpr (kChange == Change::kSoftmax) Softmax(word, x);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        Encode(i, x[i], at + i * (kRows * 128), sines + i * (kRows * 128));
      }
      sines += kBatch * kRows * 128;
    }
  }
  template <int kCount>
  __device__ __forceinline__ void LoadSome(uint32_t from,
                                           uint32_t (&word)[kCount][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(word[i][0]), "=r"(word[i][1]), "=r"(word[i][2]),
                     "=r"(word[i][3])
                   : "r"(from + i * (kRows * 128)));
    }
  }
  template <Change kChange>
  __device__ __forceinline__ void Unpack(const uint32_t (&word)[4],
                                         float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kChange == Change::kSilu) {
        const uint32_t half = HalvePair(word[i]);
        x[2 * i] = SiluOfTwice(Bf16::Low(half));
        x[2 * i + 1] = SiluOfTwice(Bf16::High(half));
      } else {
        x[2 * i] = Bf16::Low(word[i]);
        x[2 * i + 1] = Bf16::High(word[i]);
      }
    }
  }
  // Sixteen threads have a token. Maxima are of bfloat16 numbers, and go from
  // thread to thread two by two.
  template <int kCount>
  __device__ __forceinline__ void Softmax(const uint32_t (&word)[kCount][4],
                                          float (&x)[kCount][8]) const {
    static_assert(kCount % 2 == 0, "");
    constexpr float kLog2E = 1.442695041f;
    uint32_t max[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      max[i / 2] = Bf16::Pack(Greatest(word[i]), Greatest(word[i + 1]));
    }
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        max[i] = MaxPair(max[i], __shfl_xor_sync(0xffffffffu, max[i], offset));
      }
    }
    float sum[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float most =
          i % 2 == 0 ? Bf16::Low(max[i / 2]) : Bf16::High(max[i / 2]);
      // What is no feature is 0, and its exponential, too.
      const float least = exists ? most * kLog2E : INFINITY;
      sum[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[i][j] = FastExp2(fmaf(x[i][j], kLog2E, -least));
        sum[i] += x[i][j];
      }
    }
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float inverse = __fdividef(1.0f, sum[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i][j] *= inverse;
    }
  }
  static __device__ __forceinline__ uint32_t MaxPair(uint32_t a, uint32_t b) {
    uint32_t max;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
    return max;
  }
  // Of this thread's features.
  __device__ __forceinline__ float Greatest(const uint32_t (&word)[4]) const {
    const uint32_t max =
        MaxPair(MaxPair(word[0], word[1]), MaxPair(word[2], word[3]));
    return exists ? fmaxf(Bf16::Low(max), Bf16::High(max)) : -INFINITY;
  }
  __device__ __forceinline__ void Encode(int pass, const float (&x)[8],
                                         uint32_t to, uint32_t sines) {
    if constexpr (kCosine) {
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = x[j] * cos[pass % 2][j];
      linear_prefill::StoreEight(to, y);
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = x[j] * sin[pass % 2][j];
      linear_prefill::StoreEight(sines, y);
      TurnWaves(pass);
    } else {
      linear_prefill::StoreEight(to, x);
    }
  }

  const Args& args;
  const Layout<kForm>& layout;
  int thread;
  int feature;
  int row;
  uint32_t at;
  bool exists;
  Place key;
  Place sine;
  int turned_head = -1;
  float twice[8];              // cos of a pass's turn, twice
  float cos[2][8], sin[2][8];  // of this pass and the one before, in turns
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MAKE_CUH_
