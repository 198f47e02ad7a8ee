// Shared by the parts of prefill attention: arguments, a block's shared memory,
// its ring buffers, and its next item.
#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_SHARED_CUH_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_SHARED_CUH_

#include <cstdint>

#include "kernels/attention/prefill/attention_prefill_cuda.h"

namespace recurve {

// Scratch memory holds queries in cores of 8 rows of 8 16-bit elements:
// [heads][slot][64 queries], each [width / 8][64][8].
struct AttentionPrefillArgs {
  AttentionPrefillParams p;
  AttentionPageLayout layout;
  AttentionPrefillSchedule parts;
  int query_tile;
  int width;
  int group;  // query heads of a kv head
  int query_tiles;
  int64_t query_bytes;
  float query_scale;  // `scale` and log2(e)
  bool aligned;       // heads of q begin at 16 bytes

  template <typename T>
  __device__ T* Scheduled(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(p.schedule) + offset);
  }
  __device__ const AttentionPrefillHeader& header() const {
    return *Scheduled<const AttentionPrefillHeader>(0);
  }
  __device__ char* Queries(int head, int slot) const {
    return static_cast<char*>(p.scratch) + head * query_bytes +
           int64_t{2} * slot * query_tile * width;
  }
};

// Next item of a block: a query tile, and a query head. key_tiles is negative
// if none is left.
struct AttentionPrefillItem {
  AttentionPrefillTile tile;
  int32_t head;
  int32_t spare[3];
};

template <int kWidthOf>
struct AttentionPrefillSizes {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kGroups = kWidth == 64 ? 3 : 2;  // warpgroups
  static constexpr int kKeyTile = kWidth == 256 ? 64 : 128;
  static constexpr int kPages = kKeyTile / 64;
  static constexpr int kStages = kWidth == 64 ? 4 : 2;
  static constexpr int kItemStages = 2;
  static constexpr int kQueryBytes = 2 * 64 * kWidth;  // of a warpgroup
  static constexpr int kTileBytes = 2 * kKeyTile * kWidth;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // Copies of two pages a tile take more registers than those of one.
  static constexpr int kCopyRegisters = kGroups == 3  ? 32
                                        : kPages == 2 ? 56
                                                      : 40;
  static constexpr int kComputeRegisters = kGroups == 3  ? 160
                                           : kPages == 2 ? 224
                                                         : 232;

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
  static_assert(kItems + kItemStages * sizeof(AttentionPrefillItem) <=
                kQueries);
  static_assert(kQueries % 128 == 0 && kBytes <= 232448);
};

// A stage of a ring buffer, and its phase's parity.
template <int kStages>
struct AttentionPrefillStage {
  int index = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_SHARED_CUH_
