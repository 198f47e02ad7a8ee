// How tensor product attention over prompts is cut into thread blocks: plain
// arithmetic, tested without a GPU.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_PLAN_H_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_PLAN_H_

#include <cstdint>

#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// Work is cut into query tiles: some new tokens of one row, one head. A tile
// goes through its row's context by key tiles, which begin at multiples of
// their size in the sequence, from position 0 on; so a query meets the same
// keys in the same order in any tile.
//
// K_h and V_h of some heads at a time are written to scratch memory, from which
// all query tiles of these heads read them.
struct TpaPrefillPlan {
  int width;        // features a kernel instance has: 64, 128 or 256
  int groups;       // warpgroups that compute, of 64 queries each
  int query_tile;   // 64 · groups
  int key_tile;     // tokens
  int head_group;   // heads of which scratch memory holds queries and keys
  int max_rows;     // of the launch
  int query_tiles;  // at most, of all rows
  int key_tiles;    // likewise
  int64_t schedule_bytes;
  int64_t query_bytes;    // of scratch memory, for one head
  int64_t context_bytes;  // likewise, K and V
  int64_t scratch_bytes;
};

// Limits of a launch.
struct TpaPrefillLimits {
  int max_rows;
  int64_t max_tokens;   // new tokens of all rows
  int64_t max_context;  // tokens of all rows, new ones included
  int64_t max_scratch;  // bytes; one head at least is taken, however little
                        // it is
};

inline constexpr int kTpaPrefillMaxRows = 16384;

// Pure. `query_tiles` is 0 if the shape is not one of TpaDecodeSupports, or the
// limits are negative or beyond 2^31 - 1 tokens or kTpaPrefillMaxRows.
TpaPrefillPlan PlanTpaPrefill(const TpaShape& shape,
                              const TpaPrefillLimits& limits);

// ---- the schedule, in device memory ----

// One query tile.
struct alignas(16) TpaPrefillTile {
  int32_t row;
  int32_t length;     // tokens of the row
  int32_t position;   // of the tile's first query
  int32_t token;      // its place among the launch's new tokens
  int32_t queries;    // of the tile, 1 or more
  int32_t key_tiles;  // that they see
  int32_t first_key;  // the row's first key tile in scratch memory
  int32_t slot;       // place of the queries there
};
// One key tile of a row.
struct alignas(16) TpaPrefillKeyTile {
  int32_t row;
  int32_t length;  // tokens of the row
  int32_t index;   // of the row's key tiles
  int32_t spare;
};
struct TpaPrefillHeader {
  int32_t next;         // item that is to be taken next; see the kernel
  int32_t query_tiles;  // in use
  int32_t key_tiles;
  int32_t spare;
};

// Offsets of its parts, in bytes.
struct TpaPrefillSchedule {
  int64_t by_length;  // [query_tiles] TpaPrefillTile, longest first
  int64_t by_slot;    // [query_tiles] TpaPrefillTile
  int64_t keys;       // [key_tiles] TpaPrefillKeyTile
  int64_t bytes;

  constexpr TpaPrefillSchedule(int64_t query_tiles, int64_t key_tiles)
      : by_length(128),
        by_slot(by_length + 32 * query_tiles),
        keys(by_slot + 32 * query_tiles),
        bytes((keys + 16 * key_tiles + 127) / 128 * 128) {}
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_PLAN_H_
