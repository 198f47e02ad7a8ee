#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_SCHEDULE_H_
#define RECURVE_KERNELS_TPA_DECODE_TPA_SCHEDULE_H_

#include <cstdint>

#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {

// Who works on what in a decode step: found on the host from the lengths, once
// a step, and the same for every layer (MakeTpaSchedule). All of it is one
// piece of memory, laid out as TpaScheduleLayout says, which the device reads a
// copy of.

// A row of the batch. Its partial results have the slots [first_slot,
// end_slot), in the order of its tokens; blocks [first_block, last_block] work
// on it and merge it.
struct TpaRowWork {
  int32_t length;  // tokens, within what the page table holds
  int32_t first_slot;
  int32_t end_slot;
  int32_t first_block;
  int32_t last_block;
  int32_t unused[3];
};

// Pages whose numbers a block finds beside its share, without a second read.
inline constexpr int kTpaEarlyPages = 8;

// A block's share: from chunk `first_chunk` of `first_row` up to but without
// chunk `last_chunk` of `last_row`. One line of memory, so that a block knows
// after one read where its first factors are.
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

// Where the parts begin, in bytes.
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

// What a step attends to.
struct TpaScheduleParams {
  const int32_t* lengths;     // [rows] tokens, 0 to 64 · page_table_stride
  const int32_t* page_table;  // [rows, page_table_stride]: of each row the
                              // pages that its tokens take are read
  int64_t page_table_stride;  // pages; 64 · rows of it at most 2^31 - 1
  int rows;                   // 1 to kTpaMaxRows
};

// Shares out the work of a decode step. `schedule`: of
// TpaScheduleParts(plan, rows, 64 · page_table_stride).bytes, all host memory;
// what of it no launch reads is left as it is. False, and nothing is written,
// for what the comments above rule out, or a plan of other rows. 2 to 20
// microseconds of up to a few hundred rows.
bool MakeTpaSchedule(const TpaScheduleParams& params, const TpaDecodePlan& plan,
                     void* schedule);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_SCHEDULE_H_
