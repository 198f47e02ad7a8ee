// Transform warpgroup (Makers) of linear_noncausal_ring.cu: makes k̃ and q̃.
// Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_MAKE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_MAKE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

// silu of twice h: x / (1 + e^−x) is x/2 + x/2 · tanh(x/2), with one special
// function instead of two.
__device__ __forceinline__ float SiluOfTwice(float h) {
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
  return fmaf(h, t, h);
}
// Halves of a pair, exact except for the smallest numbers.
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
  // cos and sin of angles advance by the Chebyshev recurrence, which restarts
  // from exact values after this many tiles: its error grows with the square,
  // to at most 6e-4 (7e-5 on average), to which bfloat16 adds 2e-3 (1e-3).
  static constexpr int kFreshTiles = 16;
  // From this size on, softmax is taken relative to the maximum: sums of e^16
  // are far from all limits, also times S.
  static constexpr float kLarge = 16.0f;
  static constexpr uint32_t kLargePattern = 0x4180;  // in bfloat16
  // log2(e) in 16 bits, 5e-6 off, so that its product with a bfloat16 number is
  // exact (to 2e38): if rounded, the remainder of the greatest x would exceed
  // an exponent from 2^31 on.
  static constexpr float kShortLog2E = 47274.0f / 32768.0f;
  static constexpr uint32_t kNoMaxima = 0xff80ff80;  // −∞, twice

  __device__ __forceinline__ Maker(const Args& a, const Layout<kForm>& l)
      : args(a),
        layout(l),
        at(Thread() % 16 / 8 * kTileBytes +
           wgmma::PieceOffset(Row(), Thread() % 8)) {}

  // The thread's index among the Makers. Computed at most once a tile.
  static __device__ __forceinline__ uint32_t Thread() {
    return ThreadAnew() - kMultipliers;
  }
  static __device__ __forceinline__ int Feature() { return Thread() % 16 * 8; }
  static __device__ __forceinline__ int Row() { return Thread() / 16; }

  __device__ __forceinline__ void Run() {
    // Before any work item is known.
    if (kCosine && args.p.phase_head_stride == 0) UseTurnsOf(0);
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      BarrierWait(layout.ItemFull(round % kItemPlaces),
                  round / kItemPlaces & 1);
      if (!Told(layout, round).Works()) break;
      if (round % 2 == 0) {
        MakeAll<false>(round, args.k_change);
      } else {
        MakeAll<true>(round, args.q_change);
      }
      WarpArrive(layout.ItemFree(round % kItemPlaces));
    }
  }
  template <bool kQueries>
  __device__ __forceinline__ void MakeAll(uint32_t round, Change change) {
    switch (change) {
      case Change::kNone:
        MakeAllOf<Change::kNone, kQueries>(round);
        break;
      case Change::kSilu:
        MakeAllOf<Change::kSilu, kQueries>(round);
        break;
      case Change::kSoftmax:
        MakeAllOf<Change::kSoftmax, kQueries>(round);
        break;
    }
  }
  template <Change kChange, bool kQueries>
  __device__ __forceinline__ void MakeAllOf(uint32_t round) {
    const Item item = Told(layout, round);
    int tile = item.begin;
    const int end = item.end;
    if (tile == end) return;
    if (kCosine) {
      UseTurnsOf(item.head);
      CatchUp(round, tile);
    }
#pragma unroll 1
    for (; tile < end; ++tile) {
      if (kCosine && tile % kFreshTiles == 0) {
        BeginWaves(ToldPosition(layout, round) + tile * kTokens + Row());
      }
      BarrierWait(layout.KeyFull(key.index), key.phase);
      Make<kChange, kQueries>(layout.Key(key.index) + at,
                              layout.Sine(sine.index) + at);
      BulkCopyFence();  // wgmma reads this thread's writes
      WarpArrive(layout.Made(key.index));
      key.Next(P::kKeyStages);
      if (kCosine) sine.Next(P::kSineBuffers);
    }
  }

  // ---- angles ----

  // Writes the data of each feature's angles to shared memory, one thread a
  // feature.
  __device__ __forceinline__ void UseTurnsOf(int head) {
    if (turned_head == head ||
        (turned_head >= 0 && args.p.phase_head_stride == 0)) {
      return;
    }
    turned_head = head;
    NamedBarrier(3, kMakers);  // the previous head's are no longer read
    const int thread = Thread();
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
    const uint64_t first = static_cast<uint64_t>(position);
    const int feature = Feature();
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
        linear_prefill::FastCosSin(static_cast<uint32_t>(turn[i] * first >> 32),
                                   &cos[0][j + i], &sin[0][j + i]);
        linear_prefill::FastCosSin(
            static_cast<uint32_t>(turn[i] * (first - kRows) >> 32),
            &cos[1][j + i], &sin[1][j + i]);
      }
    }
  }
  // For tiles between two restarts: advances the waves from the last restart,
  // so that no bit depends on where a block begins.
  __device__ __forceinline__ void CatchUp(uint32_t round, int tile) {
    int behind = tile % kFreshTiles;
    if (behind == 0) return;
    BeginWaves(ToldPosition(layout, round) + (tile - behind) * kTokens + Row());
#pragma unroll 1
    for (; behind > 0; --behind) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) TurnWaves(pass);
    }
  }
  // From the waves of a pass, and of the previous one, to the next, in the
  // latter's place.
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

  // Passes are unrolled, so that words and results stay in their registers;
  // except for softmax, whose code is long enough that rows of few tiles would
  // wait for instructions.
  template <Change kChange, bool kQueries>
  __device__ __forceinline__ void Make(uint32_t tile, uint32_t sines) {
    // Softmax has more tokens at a time, as lanes wait for each other.
    constexpr int kBatch = kChange == Change::kSoftmax ? 4 : 2;
    const int thread = kChange == Change::kSoftmax ? Thread() : 0;
    uint32_t next[kBatch][4];
    LoadSome(tile, next);
    if (kCosine) BarrierWait(layout.SineFree(sine.index), sine.phase ^ 1);
#pragma unroll(kChange == Change::kSoftmax ? 1 : kPasses / kBatch)
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
      float sum[kBatch];
      if constexpr (kChange == Change::kSoftmax) {
        Exponentials(thread, word, x, sum);
        if constexpr (!kQueries) Normalize(sum, x);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        // Between the tokens of a batch, since lanes wait for each other.
        if constexpr (kChange == Change::kSoftmax && kQueries) {
          AddLanes(i, thread, sum);
        }
        Encode(i, x[i], at + i * (kRows * 128), sines + i * (kRows * 128));
      }
      if constexpr (kChange == Change::kSoftmax && kQueries) {
        LeaveScale(sum[0], thread, kPasses - left);
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

  // ---- softmax: sixteen threads a token ----

  // e^(x − shift), and the sums of this thread's. A shift of 0 serves tokens
  // whose greatest x is near it, so mostly no maximum is exchanged. A token's
  // shift depends on its own features alone.
  template <int kCount>
  __device__ __forceinline__ void Exponentials(
      int thread, const uint32_t (&word)[kCount][4], float (&x)[kCount][8],
      float (&sum)[kCount]) const {
    // Missing features are 0, and so are their exponentials.
    const bool exists = thread % 16 * 8 < args.head_dim;
    const float none = exists ? 0.0f : INFINITY;
    float shift[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) shift[i] = none;
    uint32_t sizes[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sizes[i] = MaxSizes(MaxSizes(word[i][0], word[i][1]),
                          MaxSizes(word[i][2], word[i][3]));
    }
    uint32_t size = sizes[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) size = MaxSizes(size, sizes[i]);
    const bool large = (size & 0x7fffu) >= kLargePattern ||
                       (size >> 16 & 0x7fffu) >= kLargePattern;
    if (__any_sync(0xffffffffu, large)) FindShifts(exists, word, shift);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[i][j] = FastExp2(fmaf(x[i][j], kShortLog2E, -shift[i]));
      }
      sum[i] = ((x[i][0] + x[i][1]) + (x[i][2] + x[i][3])) +
               ((x[i][4] + x[i][5]) + (x[i][6] + x[i][7]));
    }
  }
  // Maxima of bfloat16 numbers are exchanged in pairs.
  template <int kCount>
  __device__ __forceinline__ void FindShifts(bool exists,
                                             const uint32_t (&word)[kCount][4],
                                             float (&shift)[kCount]) const {
    static_assert(kCount % 2 == 0, "");
    uint32_t max[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      max[i / 2] = exists ? Bf16::Pack(Greatest(word[i]), Greatest(word[i + 1]))
                          : kNoMaxima;
    }
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        max[i] = MaxPair(max[i], __shfl_xor_sync(0xffffffffu, max[i], offset));
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float most =
          i % 2 == 0 ? Bf16::Low(max[i / 2]) : Bf16::High(max[i / 2]);
      if (exists && fabsf(most) >= kLarge) shift[i] = most * kShortLog2E;
    }
  }
  // Divides by the sums of tokens, of which each of their threads has a part.
  template <int kCount>
  __device__ __forceinline__ void Normalize(float (&sum)[kCount],
                                            float (&x)[kCount][8]) const {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float inverse = Reciprocal(sum[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i][j] *= inverse;
    }
  }
  // Step `step` of four of adding the sums of four tokens, of which each of
  // their threads has a part. In the first two a thread keeps half of its sums
  // and sends the others, so that it ends with one token's.
  __device__ __forceinline__ void AddLanes(int step, int thread,
                                           float (&sum)[4]) const {
    const bool upper = thread & 8;
    const bool odd = thread & 4;
    switch (step) {
      case 0:
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float other =
              __shfl_xor_sync(0xffffffffu, upper ? sum[i] : sum[2 + i], 8);
          sum[i] = (upper ? sum[2 + i] : sum[i]) + other;
        }
        break;
      case 1: {
        const float other =
            __shfl_xor_sync(0xffffffffu, odd ? sum[0] : sum[1], 4);
        sum[0] = (odd ? sum[1] : sum[0]) + other;
        break;
      }
      case 2:
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 2);
        break;
      default:
        sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 1);
    }
  }
  // Leaves the division by `sum` to the consumers: of four tokens of the passes
  // from `pass` on.
  __device__ __forceinline__ void LeaveScale(float sum, int thread,
                                             int pass) const {
    if (thread % 4 != 0) return;
    const int token = thread / 16 + kRows * (pass + thread % 16 / 4);
    asm volatile(
        "st.shared.f32 [%0], %1;" ::"r"(layout.Scale(key.index, token)),
        "f"(Reciprocal(sum))
        : "memory");
  }
  static __device__ __forceinline__ float Reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  // Maxima of absolute values; signs are meaningless.
  static __device__ __forceinline__ uint32_t MaxSizes(uint32_t a, uint32_t b) {
    uint32_t max;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
    return max;
  }
  static __device__ __forceinline__ uint32_t MaxPair(uint32_t a, uint32_t b) {
    uint32_t max;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
    return max;
  }
  // Greatest of this thread's features.
  __device__ __forceinline__ float Greatest(const uint32_t (&word)[4]) const {
    const uint32_t max =
        MaxPair(MaxPair(word[0], word[1]), MaxPair(word[2], word[3]));
    return fmaxf(Bf16::Low(max), Bf16::High(max));
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
  uint32_t at;  // offset of the thread's features in a tile
  Place key;
  Place sine;
  int turned_head = -1;
  float twice[8];              // cos of a pass's turn, twice
  float cos[2][8], sin[2][8];  // of this pass and the last, alternating
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_MAKE_CUH_
