#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_PLAN_H_
#define RECURVE_KERNELS_TPA_DECODE_TPA_PLAN_H_

#include <cstdint>

#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// How thread blocks share the work of a decode step. Results are the same to
// the bit.
enum class TpaDecodeForm {
  kParallelB,   // one block a sequence, every head (up to 80: more heads, or
                // features beyond 128, are more blocks)
  kParallelBh,  // one block a sequence and group of heads (40 or 16)
  kParallelBn,  // sequences split over tokens; their blocks merge them
};
const char* Name(TpaDecodeForm form);

// Total context of a launch.
enum class TpaContexts {
  kAny,
  kFew,    // no more chunks (tpa_chunks.h) than TpaFewChunks
  kMany,   // more chunks than TpaManyChunks
  kShort,  // no row has more than kTpaClusterChunks chunks, and there are at
           // most TpaShortRows rows
};

// Properties of a GPU that a plan needs.
struct TpaDevice {
  int multiprocessors;
  int shared_memory;  // bytes a block may have
  bool hopper;        // compute capability 9.0: bulk copies, dependent launch
  int clusters;       // of kTpaClusterBlocks blocks, one a multiprocessor, that
                      // run at once; 0: there are none
};

// Launch parameters of a decode step. They do not change while contexts grow,
// so a captured graph replays.
//
// Queries are columns: token after token, the heads of each padded to octets of
// 8. A block has `groups` warpgroups with `group_octets` octets each, in each
// of `lanes` lanes: lanes take turns at the chunks of a row.
struct TpaDecodePlan {
  TpaDecodeForm form;
  int variant;       // of kTpaVariants
  int blocks;        // thread blocks along the sequences
  int head_blocks;   // and along the columns
  int groups;        // warpgroups of a lane
  int group_octets;  // columns / 8 of each
  int lanes;         // 1 or 2
  int stages;        // stages in flight, for each lane
  int stage_bytes;
  int shared_bytes;  // of dynamic shared memory
  int threads;
  bool hopper;     // wgmma, bulk copies and dependent launch; else mma.sync
  int early_keys;  // ranks of a page whose scores begin a page early, in the
                   // instances for common shapes; else 0. Or kTpaInOrder
  int cluster_blocks;  // of a row, which are a cluster: kTpaClusterBlocks, or 0
};

// The last of kTpaVariants has heads as rows of products, not tokens
// (tpa_head_rows.cuh): up to this many, in one warpgroup a lane.
inline constexpr int kTpaHeadRowsHeads = 64;
// TpaDecodePlan::early_keys of that: pages in order, keys of all ranks, then
// values.
inline constexpr int kTpaInOrder = -1;

// The kernel instances: columns of a warpgroup, and value features in 64s. Two
// warpgroups compute: on the same columns, each for its own chunks, or on
// different ones. Fewer columns than 24 would gain little: a warpgroup reads
// all of a page from shared memory for any number.
struct TpaVariant {
  int columns;
  int value_tiles;
};
inline constexpr TpaVariant kTpaVariants[] = {{32, 1},
                                              {32, 2},
                                              {32, 4},
                                              {40, 1},
                                              {40, 2},
                                              {24, 1},
                                              {kTpaHeadRowsHeads, 1}};
inline constexpr int kTpaMaxWarpgroups = 2;

// Ranks of a page whose scores those instances begin a page early: all, if
// pages are small enough to hold these.
RECURVE_HOST_DEVICE constexpr int TpaEarlyRanks(int value_tiles, int kv_rank) {
  return value_tiles == 1 && kv_rank > 0 ? kv_rank : 1;
}

// Plans of kShort: rows that are clusters of blocks, of 64 features and one new
// token. Each block has one or two chunks for each of two lanes, and merges
// some features (tpa_cluster.cuh).
inline constexpr int kTpaClusterBlocks = 8;
inline constexpr int kTpaClusterLanes = 2;
inline constexpr int kTpaClusterChunks = 24;  // of a row, at most
inline constexpr int kTpaClusterFeatures = 64 / kTpaClusterBlocks;
// Pages that a ring buffer must hold. The page of the new token becomes full
// late, and consumers may wait for it; its values take the slots of the
// previous page's keys, which have been read by then.
inline constexpr int kTpaClusterPages = 2;
// Most clusters of a launch, even where more fit at once: up to this count they
// are faster, more were not measured (docs/kernels/tpa_decode.md).
inline constexpr int kTpaMostClusters = 12;
// Shared memory that a block merges in: a barrier, then its features of every
// chunk.
RECURVE_HOST_DEVICE constexpr int TpaClusterBytes(int octets) {
  return 16 + kTpaClusterChunks * 8 * octets * (8 + 4 * kTpaClusterFeatures);
}

// Shared memory for the factors of the queries of `octets` octets of heads.
RECURVE_HOST_DEVICE constexpr int TpaStagingBytes(const TpaShape& shape,
                                                  int octets) {
  return (4 * static_cast<int>(shape.q_rank) *
              ((static_cast<int>(shape.head_dim) + 15) / 16 * 16 + 8 * octets) +
          127) /
         128 * 128;
}

// Most sequences of a launch.
inline constexpr int kTpaMaxRows = 16384;

// Groups of 8 heads.
inline int TpaHeadOctets(const TpaShape& shape) {
  return static_cast<int>((shape.num_heads + 7) / 8);
}

// Limits of the GPU kernels. The engine reports them for a model, field by
// field (TpaLayer::CheckGpu).
inline constexpr int64_t kTpaMaxHeads = 128;
inline constexpr int64_t kTpaDimStep = 4;  // of head and value sizes
inline constexpr int64_t kTpaMaxDim = 256;
inline constexpr int64_t kTpaMaxQueryRank = 32;
inline constexpr int64_t kTpaMaxRank = 4;  // of keys and values

// Whether they support this shape: 1 to kTpaMaxHeads heads, head and value
// sizes of kTpaDimStep to kTpaMaxDim in such steps, query rank up to
// kTpaMaxQueryRank or whole queries (0), key-value rank 1 to kTpaMaxRank.
bool TpaDecodeSupports(const TpaShape& shape);

// The form for `rows` sequences of about `length` tokens each.
TpaDecodeForm ChooseTpaDecodeForm(const TpaShape& shape, int rows,
                                  int new_tokens, int64_t length,
                                  const TpaDevice& device);

// Pure. `blocks` is 0 if the shape is not supported or does not fit the device.
// kFew, with kParallelBn and one new token, may give heads to more blocks: each
// takes less time for a page, as long as every chunk has its own block. Larger
// contexts are correct, but slower. Likewise kMany, with one new token, and
// smaller contexts; a block's heads may be rows then. kShort needs kParallelBn
// and one new token, too, and its limits must hold: a longer row ends the
// launch with an error.
TpaDecodePlan PlanTpaDecode(const TpaShape& shape, TpaDecodeForm form, int rows,
                            int new_tokens, const TpaDevice& device,
                            TpaContexts contexts = TpaContexts::kAny);

// Whether a launch of this plan, of one new token a row, can append the tokens
// and form their queries itself (TpaCudaDecodeParams::factors): where
// early_keys is nonzero, unless queries are whole, or their factors do not fit
// in shared memory.
bool TpaDecodeAppends(const TpaShape& shape, const TpaDecodePlan& plan);

// Chunks of all rows up to which the plan of kFew is faster than that of kAny.
// 0: both are the same.
int TpaFewChunks(const TpaShape& shape, const TpaDevice& device);

// Chunks of all rows up to which the plan of kAny is as fast as that of kMany.
// 0: both are the same.
int TpaManyChunks(const TpaShape& shape, const TpaDevice& device);

// Rows up to which there is a plan of kShort. 0: the shape or the device has
// none.
int TpaShortRows(const TpaShape& shape, const TpaDevice& device);

// Layout of a block's merge in `bytes` of shared memory: what it holds for a
// row other than results, and the number of quads of features whose results it
// holds at a time. 0: the row has too many results.
RECURVE_HOST_DEVICE constexpr int TpaMergeHeadBytes(int segments) {
  return (4 * (segments + 1) + 15) / 16 * 16;
}
RECURVE_HOST_DEVICE constexpr int TpaMergeQuads(int bytes, int partials,
                                                int segments) {
  // Quads begin and end within a column: at most two more have maxima and sums.
  const int column_bytes = 8 * (partials + segments);
  const int left = bytes - TpaMergeHeadBytes(segments) - 2 * column_bytes;
  return left <= 0 ? 0 : left / (16 * partials + column_bytes);
}

// Layout of the partial results in a launch's scratch memory, in bytes.
struct TpaScratchLayout {
  int64_t slots;       // partial results
  int64_t slot_rows;   // columns in a slot
  int64_t slot_width;  // floats in a column's partial output
  int64_t max_sum;     // [slots, slot_rows] pairs of maximum and sum
  int64_t outputs;     // [slots, slot_rows, slot_width]
  int64_t bytes;
};
TpaScratchLayout TpaDecodeScratch(const TpaShape& shape,
                                  const TpaDecodePlan& plan, int rows,
                                  int new_tokens, int64_t max_length);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_PLAN_H_
