// Shared by the parts of prefill attention: a block's shared memory, its ring
// buffers, and its next item.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_SHARED_CUH_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_SHARED_CUH_

#include <cstdint>

#include "kernels/common/prefill_attend.cuh"
#include "kernels/tpa/prefill/tpa_prefill_args.cuh"

namespace recurve {

// Next item of a block: a query tile, and a head of the group. key_tiles is
// negative if none is left.
struct TpaPrefillItem {
  TpaPrefillTile tile;
  int32_t head;
  int32_t spare[3];
};

template <int kWidth>
struct TpaPrefillSizes : PrefillSizes<TpaPrefillItem, kWidth> {
  using Base = PrefillSizes<TpaPrefillItem, kWidth>;
  static constexpr int kCopyRegisters = Base::kGroups == 3 ? 32 : 40;
  static constexpr int kComputeRegisters = Base::kGroups == 3 ? 160 : 232;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_SHARED_CUH_
