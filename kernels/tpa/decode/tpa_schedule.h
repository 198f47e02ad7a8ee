#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_SCHEDULE_H_
#define RECURVE_KERNELS_TPA_DECODE_TPA_SCHEDULE_H_

#include <cstdint>

#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {

// The work of each block in a decode step: computed on the host from the
// lengths, once a step, the same for every layer (MakeTpaSchedule). One piece
// of memory in the layout of TpaScheduleLayout, of which the device reads a
// copy.

// A row of the batch. Its partial results have slots [first_slot, end_slot), in
// the order of its tokens; blocks [first_block, last_block] work on it and
// merge it.
struct TpaRowWork {
  int32_t length;  // tokens, within what the page table holds
  int32_t first_slot;
  int32_t end_slot;
  int32_t first_block;
  int32_t last_block;
  int32_t unused[3];
};

// Page numbers stored in a block's share, so that no second read is needed.
inline constexpr int kTpaEarlyPages = 8;

// A block's share: from chunk `first_chunk` of `first_row` up to but excluding
// chunk `last_chunk` of `last_row`. One line of memory: after one read a block
// knows where its first factors are.
struct TpaBlockWork {
  int32_t first_row;
  int32_t first_chunk;
  int32_t last_row;
  int32_t last_chunk;
  int32_t first_slot;  // of its partial results
  int32_t
      behind_page;  // tokens of the first row behind the block's first page;
                    // -1 if that is not full, or the block has none of it
  int32_t unused[2];
  TpaRowWork first;               // row first_row
  TpaRowWork last;                // the last row with work for this block
  int32_t pages[kTpaEarlyPages];  // of the first row, from its first chunk on
};
static_assert(sizeof(TpaBlockWork) == 128, "one line of memory");

// Layout of a schedule, in bytes.
struct TpaScheduleLayout {
  int64_t block_work;     // [blocks] TpaBlockWork
  int64_t row_work;       // [rows] TpaRowWork
  int64_t counters;       // [rows, head_blocks] uint32: blocks of the row that
                          // have arrived with their partial results
  int64_t partial_chunk;  // [slots] int32: the chunk a partial begins with
  int64_t slots;          // partial results at most
  int64_t bytes;
};
// Pure. For rows of at most `max_length` tokens.
TpaScheduleLayout TpaScheduleParts(const TpaDecodePlan& plan, int rows,
                                   int64_t max_length);

// Contexts of a step.
struct TpaScheduleParams {
  const int32_t* lengths;     // [rows] tokens, 0 to 64 · page_table_stride
  const int32_t* page_table;  // [rows, page_table_stride]: of each row the
                              // pages that its tokens take are read
  int64_t page_table_stride;  // pages; 64 · rows of it at most 2^31 - 1
  int rows;                   // 1 to kTpaMaxRows
};

// Shares out the work of a decode step. `schedule` is host memory of
// TpaScheduleParts(plan, rows, 64 · page_table_stride).bytes; parts that no
// launch reads are not written. False, and nothing is written, for what the
// comments above rule out, or a plan of other rows. 2 to 20 microseconds for up
// to a few hundred rows.
bool MakeTpaSchedule(const TpaScheduleParams& params, const TpaDecodePlan& plan,
                     void* schedule);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_SCHEDULE_H_
