// Producer warps of prefill attention: keys and values into shared memory, and
// A_k and A_v.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_COPY_CUH_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_COPY_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/prefill/tpa_prefill_shared.cuh"

namespace recurve {

// ---- the producer warp of queries, keys and values ----

template <typename S>
class TpaPrefillCopier {
 public:
  __device__ __forceinline__ TpaPrefillCopier(const TpaPrefillArgs& args,
                                              char* shared)
      : args_(args),
        shared_(shared),
        base_(SharedAddress(shared)),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run() {
    const int total = args_.header().query_tiles * args_.heads;
    TpaPrefillStage<S::kItemStages> at;
    uint32_t query_phase = 0;
    while (true) {
      TpaPrefillItem item;
      const bool more = Take(total, &item);
      BarrierWait(base_ + S::kEmptyItem + 8 * at.index, at.phase ^ 1);
      if (lane_ == 0) {
        *reinterpret_cast<TpaPrefillItem*>(shared_ + S::kItems +
                                           sizeof(item) * at.index) = item;
        BarrierArrive(base_ + S::kFullItem + 8 * at.index);
      }
      __syncwarp();
      at.Next();
      if (!more) return;
      CopyKeys(item, 0);
      BarrierWait(base_ + S::kEmptyQueries, query_phase ^ 1);
      query_phase ^= 1;
      if (lane_ == 0) {
        constexpr int kBytes = S::kGroups * S::kQueryBytes;
        BarrierExpect(base_ + S::kFullQueries, kBytes);
        BulkCopy(base_ + S::kQueries, args_.Queries(item.head, item.tile.slot),
                 kBytes, base_ + S::kFullQueries);
      }
      __syncwarp();
#pragma unroll 1
      for (int n = 0; n < item.tile.key_tiles; ++n) {
        if (n + 1 < item.tile.key_tiles) CopyKeys(item, n + 1);
        CopyValues(item, n);
      }
    }
  }

 private:
  // Items are in order of length, longest first, but the heads of a section
  // follow each other: as many as have keys and values that fit L2.
  __device__ __forceinline__ bool Take(int total, TpaPrefillItem* item) {
    int next = 0;
    if (lane_ == 0) {
      next = atomicAdd(&args_.Scheduled<TpaPrefillHeader>(0)->next, 1);
    }
    next = __shfl_sync(0xffffffffu, next, 0);
    item->tile.key_tiles = -1;
    if (next >= total) return false;
    const TpaPrefillHeader& header = args_.header();
    int section = args_.heads;
    if constexpr (!S::kDirect) {
      constexpr int kCachedTiles = (24 << 20) / (2 * S::kTileBytes);
      section = min(section, max(1, kCachedTiles / max(header.key_tiles, 1)));
    }
    const int first = next / (header.query_tiles * section) * section;
    const int rest = next - first * header.query_tiles;
    const int heads = min(section, args_.heads - first);
    item->tile =
        args_.Scheduled<TpaPrefillTile>(args_.parts.by_length)[rest / heads];
    item->head = first + rest % heads;
    return true;
  }

  // Number of pages of key tile n.
  __device__ __forceinline__ int Pages(const TpaPrefillItem& item,
                                       int n) const {
    return min(S::kPages, (item.tile.length - n * S::kKeyTile + 63) / 64);
  }
  __device__ __forceinline__ void CopyKeys(const TpaPrefillItem& item, int n) {
    const uint32_t full = base_ + S::kFullKeys + 8 * keys_.index;
    const uint32_t empty = base_ + S::kEmptyKeys + 8 * keys_.index;
    const uint32_t to = base_ + S::kKeys + S::kTileBytes * keys_.index;
    if constexpr (S::kDirect) {
      const int bytes = static_cast<int>(128 * args_.layout.b_k_width);
      const int pages = Pages(item, n);
      const int32_t* table = args_.PageTable(item.tile.row) + n * S::kPages;
      const int64_t page = lane_ < pages ? table[lane_] : 0;
      BarrierWait(empty, keys_.phase ^ 1);
      if (lane_ == 0) BarrierExpect(full, bytes * pages);
      __syncwarp();
      if (lane_ < pages) {
        BulkCopy(to + S::kTileBytes / S::kPages * lane_,
                 args_.PageAt(page) + 2 * args_.layout.BK(0, 0, 0), bytes,
                 full);
      }
    } else {
      const char* from = args_.Context(item.head, item.tile.first_key + n);
      BarrierWait(empty, keys_.phase ^ 1);
      if (lane_ == 0) {
        BarrierExpect(full, S::kTileBytes);
        BulkCopy(to, from, S::kTileBytes, full);
      }
    }
    __syncwarp();
    keys_.Next();
  }

  __device__ __forceinline__ void CopyValues(const TpaPrefillItem& item,
                                             int n) {
    const uint32_t full = base_ + S::kFullValues + 8 * values_.index;
    const uint32_t empty = base_ + S::kEmptyValues + 8 * values_.index;
    const uint32_t to = base_ + S::kValues + S::kTileBytes * values_.index;
    if constexpr (S::kDirect) {
      const int bytes = static_cast<int>(128 * args_.layout.b_v_width);
      const int pages = Pages(item, n);
      const int tokens = item.tile.length - n * S::kKeyTile;
      const int32_t* table = args_.PageTable(item.tile.row) + n * S::kPages;
      const int64_t page = lane_ < pages ? table[lane_] : 0;
      const bool whole = tokens >= S::kKeyTile;
      const uint32_t barrier = whole ? full : base_ + S::kTail;
      BarrierWait(empty, values_.phase ^ 1);
      if (lane_ == 0) BarrierExpect(barrier, bytes * pages);
      __syncwarp();
      if (lane_ < pages) {
        BulkCopy(to + S::kTileBytes / S::kPages * lane_,
                 args_.PageAt(page) + 2 * args_.layout.BV(0, 0, 0), bytes,
                 barrier);
      }
      if (!whole) {
        // Zeros values of tokens that do not exist: their weights are zero, but
        // memory may hold NaN.
        BarrierWait(barrier, tail_phase_);
        tail_phase_ ^= 1;
        char* tile = shared_ + (to - base_);
#pragma unroll 1
        for (int token = tokens; token < S::kKeyTile; ++token) {
          char* row =
              tile + S::kTileBytes / S::kPages * (token / 64) + token % 64 * 16;
          if (lane_ < S::kWidth / 8) {
            *reinterpret_cast<uint4*>(row + 1024 * lane_) = {0, 0, 0, 0};
          }
        }
        BulkCopyFence();  // tensor cores read these ordinary writes
        __syncwarp();
        if (lane_ == 0) BarrierArrive(full);
      }
    } else {
      const char* from =
          args_.Context(item.head, item.tile.first_key + n) + S::kTileBytes;
      BarrierWait(empty, values_.phase ^ 1);
      if (lane_ == 0) {
        BarrierExpect(full, S::kTileBytes);
        BulkCopy(to, from, S::kTileBytes, full);
      }
    }
    __syncwarp();
    values_.Next();
  }

  const TpaPrefillArgs& args_;
  char* const shared_;
  const uint32_t base_;
  const int lane_;
  TpaPrefillStage<S::kStages> keys_;
  TpaPrefillStage<S::kStages> values_;
  uint32_t tail_phase_ = 0;
};

// ---- the producer warp of A_k and A_v (kDirect) ----

template <typename T, typename S>
__device__ __forceinline__ void FetchTpaPrefillFactors(
    const TpaPrefillArgs& args, char* shared) {
  constexpr int kEach = S::kKeyTile / 32;
  const uint32_t base = SharedAddress(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TpaPrefillStage<S::kItemStages> at;
  TpaPrefillStage<S::kFactorStages> stage;
  while (true) {
    BarrierWait(base + S::kFullItem + 8 * at.index, at.phase);
    const TpaPrefillItem item = *reinterpret_cast<const TpaPrefillItem*>(
        shared + S::kItems + sizeof(TpaPrefillItem) * at.index);
    __syncwarp();
    if (lane == 0) BarrierArrive(base + S::kEmptyItem + 8 * at.index);
    at.Next();
    if (item.tile.key_tiles < 0) return;
    const int head = args.first_head + item.head;
    const int32_t* table = args.PageTable(item.tile.row);
#pragma unroll 1
    for (int n = 0; n < item.tile.key_tiles; ++n) {
      T a_k[kEach], a_v[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int position = n * S::kKeyTile + 32 * i + lane;
        a_k[i] = a_v[i] = Half<T>::From(0.0f);
        if (position < item.tile.length) {
          const T* page =
              reinterpret_cast<const T*>(args.PageAt(table[position / 64]));
          a_k[i] = page[args.layout.AK(position % 64, 0, head)];
          a_v[i] = page[args.layout.AV(position % 64, 0, head)];
        }
      }
      BarrierWait(base + S::kEmptyFactors + 8 * stage.index, stage.phase ^ 1);
      float* to = reinterpret_cast<float*>(shared + S::kFactors) +
                  2 * S::kKeyTile * stage.index;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        to[32 * i + lane] = Half<T>::To(a_k[i]);
        to[S::kKeyTile + 32 * i + lane] = Half<T>::To(a_v[i]);
      }
      BarrierArrive(base + S::kFullFactors + 8 * stage.index);
      stage.Next();
    }
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_COPY_CUH_
