#ifndef RECURVE_KERNELS_TPA_TPA_PLAN_H_
#define RECURVE_KERNELS_TPA_TPA_PLAN_H_

#include <cstdint>

#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// How thread blocks share the work of a decode step. The results are the same
// to the bit.
enum class TpaDecodeForm {
  kParallelB,   // one block a sequence, every head
  kParallelBh,  // one block a sequence and group of 16 heads
  kParallelBn,  // sequences split over tokens; a second launch merges
};
const char* Name(TpaDecodeForm form);

// What the plan needs to know of a GPU.
struct TpaDevice {
  int multiprocessors;
  int shared_memory;  // bytes a block may have
  bool hopper;        // compute capability 9.0: bulk copies, dependent launch
};

// Launch parameters of a decode step. They stay as they are while contexts
// grow, so a captured graph replays.
struct TpaDecodePlan {
  TpaDecodeForm form;
  int variant;      // of kTpaVariants
  int blocks;       // thread blocks along the sequences
  int head_blocks;  // and along (new token, group of 16 heads)
  int groups;       // such pairs in a block
  int stages;       // blocks of factors in flight
  int stage_bytes;
  int shared_bytes;  // of dynamic shared memory
  int threads;
  bool bulk_copies;
  bool dependent_launch;
};

// The kernel instances: registers are laid out for so many features (of keys
// and of values). `max_groups` groups of 16 heads fit a multiprocessor, with
// `warps` warps each; `copy_threads` more copy (or lend their registers).
struct TpaVariant {
  int features;
  int warps;
  int pages;  // in a tile, the unit of the inner loop
  int max_groups;
  int copy_threads;
  bool query_in_registers;

  constexpr int max_threads() const {
    return 32 * warps * max_groups + copy_threads;
  }
};
inline constexpr TpaVariant kTpaVariants[] = {{64, 2, 1, 5, 32, true},
                                              {128, 4, 2, 2, 128, true},
                                              {256, 4, 1, 2, 128, false}};

// 16-bit terms that a query is taken apart into, at most.
inline constexpr int kTpaQueryTerms = 3;

// Groups of 16 heads.
inline int TpaHeadGroups(const TpaShape& shape) {
  return static_cast<int>((shape.num_heads + 15) / 16);
}

// Whether the GPU kernels take this shape: 1 to 128 heads, head and value sizes
// from 8 to 256 in steps of 8, query rank 1 to 32, key-value rank 1 to 4.
bool TpaDecodeSupports(const TpaShape& shape);

// The form to take for `rows` sequences of about `length` tokens each.
TpaDecodeForm ChooseTpaDecodeForm(const TpaShape& shape, int rows,
                                  int new_tokens, int64_t length,
                                  const TpaDevice& device);

// Pure. `blocks` is 0 if the shape is not supported or does not fit the device.
TpaDecodePlan PlanTpaDecode(const TpaShape& shape, TpaDecodeForm form, int rows,
                            int new_tokens, const TpaDevice& device);

// Where the parts of a launch's scratch memory begin, in bytes. Only
// kParallelBn uses any.
struct TpaScratchLayout {
  int64_t slots;       // partial results
  int64_t slot_rows;   // heads in a slot, padded to 16 for each new token
  int64_t slot_width;  // floats in a head's partial output
  int64_t max_segments;
  int64_t max_chunks;
  int64_t max_log_sum;  // [slots, slot_rows] pairs of maximum and sum
  int64_t outputs;      // [slots, slot_rows, slot_width]
  int64_t chunk_slot;   // [rows, max_chunks] int32
  int64_t bytes;
};
TpaScratchLayout TpaDecodeScratch(const TpaShape& shape,
                                  const TpaDecodePlan& plan, int rows,
                                  int new_tokens, int64_t max_length);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_PLAN_H_
