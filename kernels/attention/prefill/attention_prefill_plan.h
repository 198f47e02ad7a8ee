// How softmax attention over prompts is cut into thread blocks: plain
// arithmetic, tested without a GPU.
#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_PLAN_H_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_PLAN_H_

#include <cstdint>

#include "kernels/attention/decode/attention_plan.h"

namespace recurve {

// Work is cut into query tiles: some new tokens of one row, one head. A tile
// goes through its row's context by key tiles of one or two pages, which begin
// at multiples of their size in the sequence, from position 0 on; so a query
// meets the same keys in the same order in any tile.
struct AttentionPrefillPlan {
  AttentionShape shape;
  WeightType element;  // of the cache
  int width;           // features a kernel instance has: 64, 128 or 256
  int query_tile;      // queries
  int key_tile;        // tokens
  int max_rows;        // of the launch
  int query_tiles;     // at most, of all rows; 0: not supported
  int64_t schedule_bytes;
  int64_t query_bytes;    // of scratch memory, for one head
  int64_t scratch_bytes;  // 0 for a float32 cache
};

// Limits of a launch.
struct AttentionPrefillLimits {
  int max_rows;        // 1 to kAttentionMaxRows
  int64_t max_tokens;  // new tokens of all rows, 1 to 2^31 - 1
};

// Pure.
AttentionPrefillPlan PlanAttentionPrefill(const AttentionShape& shape,
                                          WeightType element,
                                          const AttentionPrefillLimits& limits);

// ---- the schedule, in device memory ----

// One query tile.
struct alignas(16) AttentionPrefillTile {
  int32_t row;        // of the page table
  int32_t length;     // tokens of the row
  int32_t position;   // of the tile's first query
  int32_t token;      // its place among the launch's new tokens
  int32_t queries;    // of the tile, 1 or more
  int32_t key_tiles;  // that they see
  int32_t slot;       // place of the queries in scratch memory
  int32_t spare;
};
struct alignas(16) AttentionPrefillHeader {
  int32_t next;         // item that is to be taken next; see the kernel
  int32_t query_tiles;  // in use
  int32_t key_tiles;    // of all rows
  int32_t spare;
};

// Offsets of its parts, in bytes.
struct AttentionPrefillSchedule {
  int64_t by_length;  // [query_tiles] AttentionPrefillTile, longest first
  int64_t by_slot;    // [query_tiles] AttentionPrefillTile
  int64_t bytes;

  RECURVE_HOST_DEVICE constexpr explicit AttentionPrefillSchedule(
      int64_t query_tiles)
      : by_length(128),
        by_slot(by_length + 32 * query_tiles),
        bytes((by_slot + 32 * query_tiles + 127) / 128 * 128) {}
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_PLAN_H_
