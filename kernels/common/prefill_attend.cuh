// Causal attention of query tiles over key tiles that are copied to shared
// memory: what prefill of TPA and of softmax attention share on sm_90a.
// Consumer warpgroups of 64 queries multiply by wgmma, scores of the next tile
// with the softmax of this one (FlashAttention-3; Shah et al., 2024). Shapes:
// queries [kGroups · 64, width], keys and values [kKeyTile, width], 16-bit;
// sums, maxima and outputs float32 in registers. Floor: compute bound: 2 · (D +
// E) flops for each pair of a query and a key.
#ifndef RECURVE_KERNELS_COMMON_PREFILL_ATTEND_CUH_
#define RECURVE_KERNELS_COMMON_PREFILL_ATTEND_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/wgmma.cuh"

namespace recurve {

// A block's threads and shared memory. `Item` is what the producer hands to the
// consumers: its `tile` has `queries`, `position` of the first one, and
// `key_tiles`, negative if no item is left.
template <typename ItemOf, int kWidthOf>
struct PrefillSizes {
  using Item = ItemOf;
  static constexpr int kWidth = kWidthOf;
  static constexpr int kGroups = kWidth == 64 ? 3 : 2;  // warpgroups
  static constexpr int kKeyTile = kWidth == 256 ? 64 : 128;
  static constexpr int kPages = kKeyTile / 64;
  static constexpr int kStages = kWidth == 64 ? 4 : 2;
  static constexpr int kItemStages = 2;
  static constexpr int kQueryBytes = 2 * 64 * kWidth;  // of a warpgroup
  static constexpr int kTileBytes = 2 * kKeyTile * kWidth;
  static constexpr int kThreads = 128 * (kGroups + 1);

  // Shared memory, in bytes.
  static constexpr int kFullKeys = 0;  // barriers
  static constexpr int kEmptyKeys = kFullKeys + 8 * kStages;
  static constexpr int kFullValues = kEmptyKeys + 8 * kStages;
  static constexpr int kEmptyValues = kFullValues + 8 * kStages;
  static constexpr int kFullItem = kEmptyValues + 8 * kStages;
  static constexpr int kEmptyItem = kFullItem + 8 * kItemStages;
  static constexpr int kFullQueries = kEmptyItem + 8 * kItemStages;
  static constexpr int kEmptyQueries = kFullQueries + 8;
  static constexpr int kItems = 192;
  static_assert(kEmptyQueries + 8 <= kItems);
  static constexpr int kQueries = 1024;
  static constexpr int kKeys = kQueries + kGroups * kQueryBytes;
  static constexpr int kValues = kKeys + kStages * kTileBytes;
  static constexpr int kBytes = kValues + kStages * kTileBytes;
  static_assert(kItems + kItemStages * sizeof(Item) <= kQueries);
  static_assert(kQueries % 128 == 0 && kBytes <= 232448);
};

// A stage of a ring buffer, and its phase's parity.
template <int kStages>
struct PrefillStage {
  int index = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }
};

// By one thread, before the block's first barrier.
template <typename S>
__device__ __forceinline__ void InitPrefillBarriers(uint32_t base) {
  constexpr int kWarps = 4 * S::kGroups;
  for (int i = 0; i < S::kStages; ++i) {
    BarrierInit(base + S::kFullKeys + 8 * i, 1);
    BarrierInit(base + S::kEmptyKeys + 8 * i, kWarps);
    BarrierInit(base + S::kFullValues + 8 * i, 1);
    BarrierInit(base + S::kEmptyValues + 8 * i, kWarps);
  }
  for (int i = 0; i < S::kItemStages; ++i) {
    BarrierInit(base + S::kFullItem + 8 * i, 1);
    BarrierInit(base + S::kEmptyItem + 8 * i, kWarps);
  }
  BarrierInit(base + S::kFullQueries, 1);
  BarrierInit(base + S::kEmptyQueries, kWarps);
  BarrierInitFence();
}

// A row's maximum moves only if a score is more than kPrefillLazy
// above it, in powers of two: so outputs are not rescaled for every key tile.
// The maximum and kPrefillAbove are subtracted from scores. bfloat16
// has room below 1 for weights; float16 has not, and they grow to 2^3 above it.
template <typename T>
inline constexpr float kPrefillLazy = 8.0f;
template <>
inline constexpr float kPrefillLazy<__half> = 3.0f;
template <typename T>
inline constexpr float kPrefillAbove = kPrefillLazy<T>;
template <>
inline constexpr float kPrefillAbove<__half> = 0.0f;

// ---- consumer warpgroups ----

// A thread of a consumer warpgroup. `Worker` derives from it, and has
//
//   void ClearValues(const Item& item)   before the item's last values are
//                                        multiplied
//   void Store(const Item& item)         of out_, and sum_ of each lane
template <typename T, typename S, typename Worker>
class PrefillAttend {
 public:
  using Item = typename S::Item;

  __device__ __forceinline__ PrefillAttend(char* shared, int group)
      : shared_(shared),
        base_(SharedAddress(shared)),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(64 * group + static_cast<int>(threadIdx.x) / 32 % 4 * 16 +
             lane_ / 4) {}

  __device__ __forceinline__ void Run() {
    PrefillStage<S::kItemStages> at;
    uint32_t query_phase = 0;
    // Warpgroups take turns with the tensor cores: during one's softmax, the
    // products of another are in flight. The first begins.
    if (group_ == S::kGroups - 1) PassTurn();
    while (true) {
      BarrierWait(base_ + S::kFullItem + 8 * at.index, at.phase);
      const Item item = *reinterpret_cast<const Item*>(shared_ + S::kItems +
                                                       sizeof(Item) * at.index);
      __syncwarp();
      Arrive(S::kEmptyItem + 8 * at.index);
      at.Next();
      if (item.tile.key_tiles < 0) return;
      BarrierWait(base_ + S::kFullQueries, query_phase);
      query_phase ^= 1;
      if (64 * group_ >= item.tile.queries) {
        Pass(item);
        continue;
      }
      Attend(item);
      static_cast<Worker*>(this)->Store(item);
    }
  }

 protected:
  static constexpr int kParts = S::kWidth == 256 ? 2 : 1;
  static constexpr int kPartWidth = S::kWidth / kParts;

  // One lane of a warp.
  __device__ __forceinline__ void Arrive(int barrier) const {
    if (lane_ == 0) BarrierArrive(base_ + barrier);
  }
  __device__ __forceinline__ void AwaitTurn() const {
    NamedBarrier(1 + group_, 256);
  }
  __device__ __forceinline__ void PassTurn() const {
    const int next = group_ + 1 == S::kGroups ? 0 : group_ + 1;
    NamedBarrierArrive(1 + next, 256);
  }

  __device__ __forceinline__ void Attend(const Item& item) {
    position_ = item.tile.position + row_;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPartWidth / 2; ++i) out_[part][i] = 0.0f;
    }

    BarrierWait(base_ + S::kFullKeys + 8 * keys_.index, keys_.phase);
    IssueScores(Queries(), Keys());
    WgmmaWait<0>();
    WgmmaPin(scores_);
    ReleaseKeys(item.tile.key_tiles == 1);
    FirstSoftmax();
    Pack();

    // Up to here all queries of the warpgroup see all keys of a tile.
    const int whole = min(item.tile.key_tiles,
                          (item.tile.position + 64 * group_ + 1) / S::kKeyTile);
    int n = 1;
#pragma unroll 1
    for (; n < whole; ++n) Step<false>(n, n + 1 == item.tile.key_tiles);
#pragma unroll 1
    for (; n < item.tile.key_tiles; ++n)
      Step<true>(n, n + 1 == item.tile.key_tiles);

    BarrierWait(base_ + S::kFullValues + 8 * values_.index, values_.phase);
    static_cast<Worker*>(this)->ClearValues(item);
    IssueValues(Values());
    WgmmaWait<0>();
    WgmmaPin(out_);
    ReleaseValues();
  }

  // Attend for a warpgroup without queries: only the signals that others wait
  // for.
  __device__ __forceinline__ void Pass(const Item& item) {
    const int tiles = item.tile.key_tiles;
#pragma unroll 1
    for (int n = 0; n < tiles; ++n) {
      BarrierWait(base_ + S::kFullKeys + 8 * keys_.index, keys_.phase);
      if (n > 0) {
        BarrierWait(base_ + S::kFullValues + 8 * values_.index, values_.phase);
        AwaitTurn();
        PassTurn();
      }
      ReleaseKeys(n + 1 == tiles);
      if (n > 0) ReleaseValues();
    }
    BarrierWait(base_ + S::kFullValues + 8 * values_.index, values_.phase);
    ReleaseValues();
  }

  // Scores of tile n, and values of the previous tile.
  template <bool kMasked>
  __device__ __forceinline__ void Step(int n, bool last) {
    // Operands before the turn: nothing multiplies during the wait.
    const uint64_t queries = Queries();
    const uint64_t keys = Keys();
    const uint64_t values = Values();
    const uint32_t full_keys = base_ + S::kFullKeys + 8 * keys_.index;
    const uint32_t full_values = base_ + S::kFullValues + 8 * values_.index;
    const bool has_keys = BarrierTest(full_keys, keys_.phase);
    const bool has_values = BarrierTest(full_values, values_.phase);
    if (!has_keys) BarrierWait(full_keys, keys_.phase);
    if (!has_values) BarrierWait(full_values, values_.phase);
    AwaitTurn();
    IssueScores(queries, keys);
    IssueValues(values);
    PassTurn();
    WgmmaWait<1>();
    WgmmaPin(scores_);
    ReleaseKeys(last);
    float scale[2];
    const bool moved = Softmax<kMasked>(n, scale);
    WgmmaWait<0>();
    WgmmaPin(out_);
    WgmmaPin(weights_);
    ReleaseValues();
    // Multiplying by 1 changes nothing: no bit depends on the other rows.
    if (moved) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kPartWidth / 2; ++i) {
          out_[part][i] *= scale[i / 2 % 2];
        }
      }
    }
    Pack();
  }

  __device__ __forceinline__ uint64_t Queries() const {
    return WgmmaUniform(
        WgmmaOperand(base_ + S::kQueries + S::kQueryBytes * group_, 1024, 128));
  }
  __device__ __forceinline__ uint64_t Keys() const {
    return WgmmaUniform(WgmmaOperand(
        base_ + S::kKeys + S::kTileBytes * keys_.index, 16 * S::kKeyTile, 128));
  }
  __device__ __forceinline__ uint64_t Values() const {
    return WgmmaUniform(WgmmaOperand(
        base_ + S::kValues + S::kTileBytes * values_.index, 128, 1024));
  }
  __device__ __forceinline__ void IssueScores(uint64_t queries, uint64_t keys) {
    WgmmaPin(scores_);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < S::kWidth / 16; ++step) {
      Wgmma<kMajorK, kMajorK>(scores_, WgmmaAdvance(queries, 2048 * step),
                              WgmmaAdvance(keys, 32 * S::kKeyTile * step),
                              step > 0, T());
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ void IssueValues(uint64_t values) {
    WgmmaPin(out_);
    WgmmaPin(weights_);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < S::kKeyTile / 16; ++step) {
      // 16 tokens of a page.
      const uint64_t tokens = WgmmaAdvance(
          values, S::kTileBytes / S::kPages * (step / 4) + 256 * (step % 4));
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        WgmmaOfRegisters<kMajorMN>(
            out_[part], weights_[step],
            WgmmaAdvance(tokens, 128 * kPartWidth * part), true, T());
      }
    }
    WgmmaCommit();
  }
  __device__ __forceinline__ void ReleaseKeys(bool last) {
    Arrive(S::kEmptyKeys + 8 * keys_.index);
    keys_.Next();
    if (last) Arrive(S::kEmptyQueries);
  }
  __device__ __forceinline__ void ReleaseValues() {
    Arrive(S::kEmptyValues + 8 * values_.index);
    values_.Next();
  }

  // Scores minus `base`.
  template <bool kMasked>
  __device__ __forceinline__ void Shift(int n, const float (&base)[2]) {
#pragma unroll
    for (int j = 0; j < S::kKeyTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = scores_[4 * j + i];
        s -= base[i / 2];
        if constexpr (kMasked) {
          const int key = n * S::kKeyTile + 8 * j + 2 * (lane_ % 4) + i % 2;
          if (key > position_ + i / 2 * 8) s = -__builtin_huge_valf();
        }
      }
    }
  }
  // The greatest score of each of the thread's two rows.
  __device__ __forceinline__ void Greatest(float (&top)[2]) {
    float high[2][2];
#pragma unroll
    for (int j = 0; j < S::kKeyTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& most = high[i / 2][j % 2];
        const float s = scores_[4 * j + i];
        most = j < 2 && i % 2 == 0 ? s : fmaxf(most, s);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      top[i] = LaneMax<4>(fmaxf(high[i][0], high[i][1]));
  }
  // Shifted scores become weights, whose sums are added to sum_ · `scale`.
  __device__ __forceinline__ void Weigh(const float (&scale)[2]) {
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < S::kKeyTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = scores_[4 * j + i];
        s = FastExp2(s);
        sum[i / 2][i % 2] += s;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] = __fmaf_rn(sum_[i], scale[i], sum[i][0] + sum[i][1]);
    }
  }

  // Softmax of a row's first tile.
  __device__ __forceinline__ void FirstSoftmax() {
    const float none[2] = {0.0f, 0.0f};
    Shift<true>(0, none);
    float top[2];
    Greatest(top);
    // Position 0 is in it, so the maximum is finite.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shift_[i] = top[i] + kPrefillAbove<T>;
      sum_[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::kKeyTile / 2; ++i) scores_[i] -= shift_[i / 2 % 2];
    Weigh(none);
  }

  // Scores become weights. True if the outputs so far must be multiplied by
  // `scale`, else that is 1.
  template <bool kMasked>
  __device__ __forceinline__ bool Softmax(int n, float (&scale)[2]) {
    Shift<kMasked>(n, shift_);
    // Signs tell whether a maximum has to move: half the instructions of
    // maxima, and no exchange between lanes.
    constexpr float kRoom = kPrefillLazy<T> - kPrefillAbove<T>;
    uint32_t signs = 0x80000000u;
#pragma unroll
    for (int i = 0; i < S::kKeyTile / 2; i += 2) {
      signs &= __float_as_uint(scores_[i] - kRoom) &
               __float_as_uint(scores_[i + 1] - kRoom);
    }
    scale[0] = scale[1] = 1.0f;
    const bool moved = __any_sync(0xffffffffu, signs == 0);
    if (moved) {
      float top[2];
      Greatest(top);
      // Rows that stay below keep their bits: minus 0, times 1.
      float move[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float before = shift_[i];
        if (top[i] > kRoom) shift_[i] = before + (top[i] + kPrefillAbove<T>);
        move[i] = shift_[i] - before;
        scale[i] = FastExp2(-move[i]);
      }
#pragma unroll
      for (int i = 0; i < S::kKeyTile / 2; ++i) scores_[i] -= move[i / 2 % 2];
    }
    Weigh(scale);
    return moved;
  }

  // Weights as the next product's first operand.
  __device__ __forceinline__ void Pack() {
#pragma unroll
    for (int step = 0; step < S::kKeyTile / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights_[step][i] = Half<T>::Pack(scores_[8 * step + 2 * i],
                                          scores_[8 * step + 2 * i + 1]);
      }
    }
  }

  // Among four neighbouring lanes, each with a row of four.
  __device__ __forceinline__ void Transpose(uint32_t (&a)[4]) const {
    const bool upper = lane_ & 2;
    const uint32_t x0 = __shfl_xor_sync(0xffffffffu, upper ? a[0] : a[2], 2);
    const uint32_t x1 = __shfl_xor_sync(0xffffffffu, upper ? a[1] : a[3], 2);
    if (upper) {
      a[0] = x0;
      a[1] = x1;
    } else {
      a[2] = x0;
      a[3] = x1;
    }
    const bool odd = lane_ & 1;
    const uint32_t y0 = __shfl_xor_sync(0xffffffffu, odd ? a[0] : a[1], 1);
    const uint32_t y1 = __shfl_xor_sync(0xffffffffu, odd ? a[2] : a[3], 1);
    if (odd) {
      a[0] = y0;
      a[2] = y1;
    } else {
      a[1] = y0;
      a[3] = y1;
    }
  }

  char* const shared_;
  const uint32_t base_;
  const int group_;
  const int lane_;
  const int row_;  // of the tile; the thread's other one is row_ + 8
  int position_;   // of row_
  float scores_[S::kKeyTile / 2];  // in the layout of wgmma's accumulators
  uint32_t weights_[S::kKeyTile / 16][4];
  float out_[kParts][kPartWidth / 2];
  // Subtracted from a row's scores: a maximum, and kPrefillAbove.
  float shift_[2];
  float sum_[2];
  PrefillStage<S::kStages> keys_;
  PrefillStage<S::kStages> values_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_PREFILL_ATTEND_CUH_
