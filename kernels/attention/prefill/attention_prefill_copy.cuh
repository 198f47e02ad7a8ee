// Producer warp of prefill attention: queries, keys and values into shared
// memory.
#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_COPY_CUH_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_COPY_CUH_

#include "kernels/attention/prefill/attention_prefill_shared.cuh"
#include "kernels/common/async_copy.cuh"

namespace recurve {

template <typename S>
class AttentionPrefillCopier {
 public:
  __device__ __forceinline__
  AttentionPrefillCopier(const AttentionPrefillArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        base_(SharedAddress(shared)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        key_octets_(static_cast<int>(args.p.shape.head_dim) / 8),
        value_bytes_(static_cast<uint32_t>(128 * args.p.shape.value_dim)) {}

  __device__ __forceinline__ void Run() {
    const int total =
        args_.header().query_tiles * static_cast<int>(args_.p.shape.num_heads);
    PrefillStage<S::kItemStages> at;
    uint32_t query_phase = 0;
    while (true) {
      AttentionPrefillItem item;
      const bool more = Take(total, &item);
      BarrierWait(base_ + S::kEmptyItem + 8 * at.index, at.phase ^ 1);
      if (lane_ == 0) {
        *reinterpret_cast<AttentionPrefillItem*>(
            shared_ + S::kItems + sizeof(item) * at.index) = item;
        BarrierArrive(base_ + S::kFullItem + 8 * at.index);
      }
      __syncwarp();
      at.Next();
      if (!more) return;
      table_ = args_.p.cache.page_table +
               item.tile.row * args_.p.cache.page_table_stride;
      pages_ = AttentionPages(item.tile.length);
      head_ = item.head / args_.group * args_.layout.block;
      CopyKeys(0);
      BarrierWait(base_ + S::kEmptyQueries, query_phase ^ 1);
      query_phase ^= 1;
      if (ElectLane()) {
        constexpr int kBytes = S::kGroups * S::kQueryBytes;
        BarrierExpect(base_ + S::kFullQueries, kBytes);
        BulkCopy(base_ + S::kQueries, args_.Queries(item.head, item.tile.slot),
                 kBytes, base_ + S::kFullQueries);
      }
      __syncwarp();
#pragma unroll 1
      for (int n = 0; n < item.tile.key_tiles; ++n) {
        if (n + 1 < item.tile.key_tiles) CopyKeys(n + 1);
        CopyValues(n);
      }
    }
  }

 private:
  // Items are in order of length, longest first, but the heads of a section
  // follow each other: as many as have keys and values that fit L2.
  __device__ __forceinline__ bool Take(int total, AttentionPrefillItem* item) {
    int next = 0;
    if (lane_ == 0) {
      next = atomicAdd(&args_.Scheduled<AttentionPrefillHeader>(0)->next, 1);
    }
    next = __shfl_sync(0xffffffffu, next, 0);
    item->tile.key_tiles = -1;
    if (next >= total) return false;
    const AttentionPrefillHeader& header = args_.header();
    const int all = static_cast<int>(args_.p.shape.num_heads);
    constexpr int kCachedTiles = (24 << 20) / (2 * S::kTileBytes);
    const int section =
        min(all, args_.group * max(1, kCachedTiles / max(header.key_tiles, 1)));
    const int first = next / (header.query_tiles * section) * section;
    const int rest = next - first * header.query_tiles;
    const int heads = min(section, all - first);
    item->tile = args_.Scheduled<AttentionPrefillTile>(
        args_.parts.by_length)[rest / heads];
    item->head = first + rest % heads;
    return true;
  }

  __device__ __forceinline__ const char* Page(int index) const {
    return static_cast<const char*>(args_.p.cache.pages) +
           2 * (table_[index] * args_.p.cache.page_stride + head_);
  }

  // A tile is [width / 8][kKeyTile][8]: pages take turns, octet by octet. Pages
  // beyond the row's are not copied: their keys are masked.
  __device__ __forceinline__ void CopyKeys(int n) {
    const uint32_t full = base_ + S::kFullKeys + 8 * keys_.index;
    const uint32_t to = base_ + S::kKeys + S::kTileBytes * keys_.index;
    const int count = min(S::kPages, pages_ - n * S::kPages);
    BarrierWait(base_ + S::kEmptyKeys + 8 * keys_.index, keys_.phase ^ 1);
    if constexpr (S::kPages == 1) {
      if (ElectLane()) {
        BarrierExpect(full, 1024 * key_octets_);
        BulkCopy(to, Page(n), 1024 * key_octets_, full);
      }
    } else {
      if (ElectLane()) BarrierExpect(full, 1024 * key_octets_ * count);
      __syncwarp();
      // A copy a lane at most.
      static_assert(S::kPages * S::kWidth / 8 <= 32);
      const int page = lane_ >= key_octets_ ? 1 : 0;
      const int octet = lane_ - page * key_octets_;
      if (lane_ < key_octets_ * count) {
        BulkCopy(to + 16 * S::kKeyTile * octet + 1024 * page,
                 Page(S::kPages * n + page) + 1024 * octet, 1024, full);
      }
    }
    __syncwarp();
    keys_.Next();
  }

  // A tile is [page][width / 8][64][8].
  __device__ __forceinline__ void CopyValues(int n) {
    const uint32_t full = base_ + S::kFullValues + 8 * values_.index;
    const uint32_t to = base_ + S::kValues + S::kTileBytes * values_.index;
    const int count = min(S::kPages, pages_ - n * S::kPages);
    BarrierWait(base_ + S::kEmptyValues + 8 * values_.index, values_.phase ^ 1);
    if (ElectLane()) {
      BarrierExpect(full, value_bytes_ * count);
      for (int page = 0; page < count; ++page) {
        BulkCopy(to + S::kTileBytes / S::kPages * page,
                 Page(S::kPages * n + page) + 2 * args_.layout.k_plane,
                 value_bytes_, full);
      }
    }
    __syncwarp();
    values_.Next();
  }

  const AttentionPrefillArgs& args_;
  char* const shared_;
  const uint32_t base_;
  const int lane_;
  const int key_octets_;
  const uint32_t value_bytes_;      // of a page and kv head
  const int32_t* table_ = nullptr;  // of the item, as what follows
  int pages_ = 0;
  int64_t head_ = 0;  // elements
  PrefillStage<S::kStages> keys_;
  PrefillStage<S::kStages> values_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_COPY_CUH_
