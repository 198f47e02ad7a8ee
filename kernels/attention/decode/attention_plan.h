// How a decode step of softmax attention is shared out: plain arithmetic,
// tested without a GPU.
#ifndef RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_PLAN_H_
#define RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_PLAN_H_

#include <cstdint>

#include "kernels/attention/attention_layout.h"
#include "kernels/common/host_device.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// ---- chunks ----

// The context of a row is cut into chunks of whole pages, each of which gives
// one partial result per kv head; partials merge in order. The number of pages
// of a chunk depends on the row's length and the shape alone, so a row's bits
// do not depend on the batch or the GPU.

// Most chunks of a row: with one row, about one for each multiprocessor.
inline constexpr int kAttentionMostChunks = 128;
RECURVE_HOST_DEVICE constexpr int AttentionChunkLimit(
    const AttentionShape& shape) {
  const int64_t limit = kAttentionMostChunks / shape.num_kv_heads;
  return limit < 8 ? 8 : static_cast<int>(limit);
}
RECURVE_HOST_DEVICE constexpr int AttentionPages(int64_t length) {
  return static_cast<int>((length + kAttentionPageTokens - 1) /
                          kAttentionPageTokens);
}
// A chunk has at least this many bytes, in 16 bits, if a row of eight chunks or
// more allows: its partial result takes a while.
inline constexpr int64_t kAttentionChunkBytes = 128 << 10;
// Pages of each chunk but the last.
RECURVE_HOST_DEVICE constexpr int AttentionChunkPages(
    const AttentionShape& shape, int64_t length) {
  const int limit = AttentionChunkLimit(shape);
  const int pages = AttentionPages(length);
  const int least = static_cast<int>(
      kAttentionChunkBytes /
      (2 * kAttentionPageTokens * (shape.head_dim + shape.value_dim)));
  const int eighth = pages / 8;
  const int wanted = least < eighth ? least : eighth;
  const int needed = (pages + limit - 1) / limit;
  const int each = wanted > needed ? wanted : needed;
  return each < 1 ? 1 : each;
}
// 1 or more: a row without tokens has an empty chunk.
RECURVE_HOST_DEVICE constexpr int AttentionChunks(const AttentionShape& shape,
                                                  int64_t length) {
  const int each = AttentionChunkPages(shape, length);
  const int pages = AttentionPages(length);
  return pages == 0 ? 1 : (pages + each - 1) / each;
}

// ---- plan ----

// Properties of a GPU that a plan needs.
struct AttentionDevice {
  int multiprocessors;
  int shared_memory;  // bytes a block may have
  bool hopper;        // compute capability 9.0: bulk copies
};

// Launch parameters of decode. They do not depend on rows or contexts, so a
// captured graph replays.
struct AttentionPlan {
  AttentionShape shape;
  WeightType element;  // of the cache
  int blocks;          // thread blocks; 0: not supported
  int octets;          // groups of 8 query heads of a kv head: 1 or 2
  bool tensor;         // bulk copies and tensor cores, else plain arithmetic
  int width;           // features of the kernel's instance: 64, 128 or 256
  int stages;          // pages in flight; of the tensor kernel, as what follows
  int stage_bytes;
  int shared_bytes;
};

// Limits of the GPU kernels.
inline constexpr int64_t kAttentionMaxHeads = 128;
inline constexpr int64_t kAttentionMaxGroup = 16;
inline constexpr int64_t kAttentionDimStep = 16;  // of head and value sizes
inline constexpr int64_t kAttentionMaxDim = 256;
inline constexpr int kAttentionMaxRows = 16384;

// Whether they support this shape: 1 to kAttentionMaxHeads query heads, a
// multiple of the kv heads, at most kAttentionMaxGroup for each of these; head
// and value sizes of kAttentionDimStep to kAttentionMaxDim in such steps.
bool AttentionSupports(const AttentionShape& shape);

// Pure.
AttentionPlan PlanAttention(const AttentionShape& shape, WeightType element,
                            const AttentionDevice& device);

// Shared memory of the tensor kernel other than its ring buffer of pages.
struct AttentionSharedLayout {
  int queries;   // [2][octets, width / 16] fragments of 512 bytes
  int exchange;  // [octets][4 warps, 8 heads] of kAttentionExchangeRow floats
  int barriers;
  int ring;
  RECURVE_HOST_DEVICE constexpr AttentionSharedLayout(int width, int octets)
      : queries(1024 * octets),  // small things of each octet come first
        exchange(queries + 2 * octets * (width / 16) * 512),
        barriers(exchange + octets * ExchangeBytes(width)),
        ring((barriers + 256 + 127) / 128 * 128) {}
  // Features that warps exchange at a time.
  RECURVE_HOST_DEVICE static constexpr int Part(int width) {
    return width < 128 ? width : 128;
  }
  RECURVE_HOST_DEVICE static constexpr int ExchangeRow(int width) {
    return Part(width) + 8;  // floats; rows begin in different banks
  }
  RECURVE_HOST_DEVICE static constexpr int ExchangeBytes(int width) {
    return 4 * 8 * 4 * ExchangeRow(width);
  }
};

// ---- schedule ----

// The work of each block in a decode step: computed on the host from the
// lengths, once a step, the same for every layer of a plan. One piece of memory
// of which the device reads a copy. Items, a chunk of a kv head of a row, are
// in the order of rows, heads, chunks.

struct alignas(16) AttentionRowWork {
  int32_t length;    // tokens
  int32_t sequence;  // row of the page table
  int32_t chunk_pages;
  int32_t chunks;
  int32_t first_slot;  // of the partial results of kv head 0, a chunk each;
                       // those of other heads follow
  int32_t unused[3];
};
// Page numbers stored in a block's share, so that no second read is needed.
inline constexpr int kAttentionEarlyPages = 19;

// A block's share. One line of memory: after one read a block knows where its
// first keys are.
struct alignas(128) AttentionBlockWork {
  int32_t row;  // of the first item
  int32_t head;
  int32_t chunk;
  int32_t items;                        // may be 0
  AttentionRowWork first;               // of `row`
  int32_t page_count;                   // of `pages`
  int32_t pages[kAttentionEarlyPages];  // the first item's first pages
};
static_assert(sizeof(AttentionBlockWork) == 128, "one line of memory");

// Layout of a schedule, in bytes.
struct AttentionScheduleLayout {
  int64_t block_work;  // [blocks] AttentionBlockWork
  int64_t row_work;    // [rows] AttentionRowWork
  int64_t counters;  // [rows, G, octets] uint32: chunks that have arrived with
                     // their partial results; zeros between launches
  int64_t bytes;
};
AttentionScheduleLayout AttentionScheduleParts(const AttentionPlan& plan,
                                               int rows);

// Contexts of a step.
struct AttentionScheduleParams {
  const int32_t* lengths;  // [rows] tokens that a row sees, >= 0
  const int32_t*
      row_sequence;           // [rows] row of the page table, or null: its own
  int rows;                   // 1 to kAttentionMaxRows
  const int32_t* page_table;  // [sequences, page_table_stride]: of each row's
                              // pages some are read; null: by the device
  int64_t page_table_stride;  // pages; rows are not longer
};

// Whether a warp of its own counts the arrivals of partial results: the others
// begin the next item instead of waiting for memory. Narrow heads have a second
// block for that, and groups above 8 no registers for one more warp.
RECURVE_HOST_DEVICE constexpr bool AttentionCountsAside(int width, int octets) {
  return width == 256 && octets == 1;
}

// What an item takes, in bytes that its block copies meanwhile: its pages, or,
// where there are few, their products and the end, of which some steps wait for
// memory. (Fitted to times on an H200, 4 µs for the end. Where it is counted
// aside, the next item cannot be before: 32 rows of mixed lengths are slower by
// 9% without the products' part, and by 47% by pages alone.)
int64_t AttentionItemCost(const AttentionPlan& plan, int pages);

// Shares out the work of a decode step. `schedule` is host memory of
// AttentionScheduleParts(plan, rows).bytes. False, and nothing is written, for
// what the comments above rule out or a plan that is not supported.
bool MakeAttentionSchedule(const AttentionScheduleParams& params,
                           const AttentionPlan& plan, void* schedule);

// Partial results of `rows` rows of at most `pages` pages each: offsets in
// scratch memory, in bytes.
struct AttentionScratchParts {
  int64_t max_sum;   // [slots, H / G] float2
  int64_t partials;  // [slots, H / G, E] float32
  int64_t bytes;
};
AttentionScratchParts AttentionScratch(const AttentionPlan& plan, int rows,
                                       int64_t pages);
inline int64_t AttentionScratchBytes(const AttentionPlan& plan, int rows,
                                     int64_t pages) {
  return AttentionScratch(plan, rows, pages).bytes;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_PLAN_H_
