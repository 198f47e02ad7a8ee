// Shared by the parts of prefill attention: arguments, a block's shared memory,
// its ring buffers, and its next item.
#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_SHARED_CUH_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_SHARED_CUH_

#include <cstdint>

#include "kernels/attention/prefill/attention_prefill_cuda.h"
#include "kernels/common/prefill_attend.cuh"

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

template <int kWidth>
struct AttentionPrefillSizes : PrefillSizes<AttentionPrefillItem, kWidth> {
  using Base = PrefillSizes<AttentionPrefillItem, kWidth>;
  // Copies of two pages a tile take more registers than those of one.
  static constexpr int kCopyRegisters = Base::kGroups == 3  ? 32
                                        : Base::kPages == 2 ? 56
                                                            : 40;
  static constexpr int kComputeRegisters = Base::kGroups == 3  ? 160
                                           : Base::kPages == 2 ? 224
                                                               : 232;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_SHARED_CUH_
