// Producer warp of prefill attention: queries, keys and values into shared
// memory.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_COPY_CUH_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_COPY_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/prefill/tpa_prefill_shared.cuh"

namespace recurve {

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
    PrefillStage<S::kItemStages> at;
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
    constexpr int kCachedTiles = (24 << 20) / (2 * S::kTileBytes);
    const int section =
        min(args_.heads, max(1, kCachedTiles / max(header.key_tiles, 1)));
    const int first = next / (header.query_tiles * section) * section;
    const int rest = next - first * header.query_tiles;
    const int heads = min(section, args_.heads - first);
    item->tile =
        args_.Scheduled<TpaPrefillTile>(args_.parts.by_length)[rest / heads];
    item->head = first + rest % heads;
    return true;
  }

  __device__ __forceinline__ void CopyKeys(const TpaPrefillItem& item, int n) {
    const uint32_t full = base_ + S::kFullKeys + 8 * keys_.index;
    const uint32_t empty = base_ + S::kEmptyKeys + 8 * keys_.index;
    const uint32_t to = base_ + S::kKeys + S::kTileBytes * keys_.index;
    const char* from = args_.Context(item.head, item.tile.first_key + n);
    BarrierWait(empty, keys_.phase ^ 1);
    if (lane_ == 0) {
      BarrierExpect(full, S::kTileBytes);
      BulkCopy(to, from, S::kTileBytes, full);
    }
    __syncwarp();
    keys_.Next();
  }

  __device__ __forceinline__ void CopyValues(const TpaPrefillItem& item,
                                             int n) {
    const uint32_t full = base_ + S::kFullValues + 8 * values_.index;
    const uint32_t empty = base_ + S::kEmptyValues + 8 * values_.index;
    const uint32_t to = base_ + S::kValues + S::kTileBytes * values_.index;
    const char* from =
        args_.Context(item.head, item.tile.first_key + n) + S::kTileBytes;
    BarrierWait(empty, values_.phase ^ 1);
    if (lane_ == 0) {
      BarrierExpect(full, S::kTileBytes);
      BulkCopy(to, from, S::kTileBytes, full);
    }
    __syncwarp();
    values_.Next();
  }

  const TpaPrefillArgs& args_;
  char* const shared_;
  const uint32_t base_;
  const int lane_;
  PrefillStage<S::kStages> keys_;
  PrefillStage<S::kStages> values_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_COPY_CUH_
