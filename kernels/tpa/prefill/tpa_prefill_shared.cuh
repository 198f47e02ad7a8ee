// Shared by the parts of prefill attention: a block's shared memory, its ring
// buffers, and its next item.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_SHARED_CUH_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_SHARED_CUH_

#include <cstdint>

#include "kernels/tpa/prefill/tpa_prefill_args.cuh"

namespace recurve {

// Next item of a block: a query tile, and a head of the group. key_tiles is
// negative if none is left.
struct TpaPrefillItem {
  TpaPrefillTile tile;
  int32_t head;
  int32_t spare[3];
};

template <typename T, int kWidthOf>
struct TpaPrefillSizes {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kGroups = kWidth == 64 ? 3 : 2;
  static constexpr int kKeyTile = kWidth == 256 ? 64 : 128;
  static constexpr int kPages = kKeyTile / 64;
  static constexpr int kStages = kWidth == 64 ? 4 : 2;
  static constexpr int kItemStages = 2;
  static constexpr int kQueryBytes = 2 * 64 * kWidth;  // of a warpgroup
  static constexpr int kTileBytes = 2 * kKeyTile * kWidth;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kCopyRegisters = kGroups == 3 ? 32 : 40;
  static constexpr int kComputeRegisters = kGroups == 3 ? 160 : 232;

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
  static_assert(kItems + kItemStages * sizeof(TpaPrefillItem) <= kQueries);
  static_assert(kQueries % 128 == 0 && kBytes <= 232448);
};

// A stage of a ring buffer, and its phase's parity.
template <int kStages>
struct TpaPrefillStage {
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

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_SHARED_CUH_
