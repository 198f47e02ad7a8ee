// How the gated delta rule over prompts is cut into chunks and rounds, and the
// layout of its workspace: plain arithmetic, testable without a GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREFILL_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREFILL_PLAN_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// Chunks end at multiples of this many tokens of the absolute position.
inline constexpr int kDeltaChunk = 64;
inline constexpr int kDeltaPrefillDim = 128;  // D at most; tiles have as many
inline constexpr int kDeltaPrefillMaxValue = 256;   // E at most
inline constexpr int64_t kDeltaMostChunks = 65535;  // of a round, all rows
inline constexpr int kDeltaColumns = 64;            // of the state, in a block

// Sizes that prompts by chunks take: D and E multiples of 8.
constexpr bool DeltaPrefillDoes(int64_t key_heads, int64_t value_heads,
                                int64_t head_dim, int64_t value_dim) {
  return key_heads >= 1 && value_heads >= key_heads &&
         value_heads % key_heads == 0 && value_heads <= 65535 &&
         head_dim >= 8 && head_dim <= kDeltaPrefillDim && head_dim % 8 == 0 &&
         value_dim >= 8 && value_dim <= kDeltaPrefillMaxValue &&
         value_dim % 8 == 0;
}

// Factors of a chunk and value head, which one kernel makes and another one
// multiplies with the state: an image of shared memory. Tiles of bfloat16, each
// of `terms` terms that add up to the value: [64, 128] of −W, Q and K, [64, 64]
// of scores, 0 above the diagonal; then 128 floats, the chunk's decay of each
// row of the state. Piece p, 16 bytes, of row r of a tile is at 16 (64 p + r):
// cores of eight rows, as the tensor cores read them.
inline constexpr int kDeltaTileBytes = kDeltaChunk * kDeltaPrefillDim * 2;
inline constexpr int kDeltaScoreBytes = kDeltaChunk * kDeltaChunk * 2;
RECURVE_HOST_DEVICE constexpr int DeltaTileAt(int terms, int tile) {
  return tile * terms * kDeltaTileBytes;
}
RECURVE_HOST_DEVICE constexpr int DeltaDecayAt(int terms) {
  return terms * (3 * kDeltaTileBytes + kDeltaScoreBytes);
}
RECURVE_HOST_DEVICE constexpr int DeltaImageBytes(int terms) {
  return DeltaDecayAt(terms) + 4 * kDeltaPrefillDim;
}

RECURVE_HOST_DEVICE constexpr int DeltaSplits(int64_t value_dim) {
  return static_cast<int>((value_dim + kDeltaColumns - 1) / kDeltaColumns);
}
// U of a chunk and value head, kDeltaColumns after the others: bfloat16, or
// float32 with two terms. Rows 16 w to 16 w + 15 of 16 columns are in the order
// of the accumulators of warp w that start from them, 16 bytes a thread.
RECURVE_HOST_DEVICE constexpr int DeltaValueTileBytes(int terms) {
  return 2 * terms * kDeltaChunk * kDeltaColumns;
}
RECURVE_HOST_DEVICE constexpr int64_t DeltaValueBytes(int64_t value_dim,
                                                      int terms) {
  return int64_t{DeltaSplits(value_dim)} * DeltaValueTileBytes(terms);
}
constexpr int64_t DeltaChunkBytes(int64_t value_heads, int64_t value_dim,
                                  int terms) {
  return value_heads *
         (DeltaImageBytes(terms) + DeltaValueBytes(value_dim, terms));
}

// Chunks of `count` tokens from `position` on.
RECURVE_HOST_DEVICE constexpr int64_t DeltaChunks(int64_t position,
                                                  int64_t count) {
  return count <= 0 ? 0
                    : (position + count + kDeltaChunk - 1) / kDeltaChunk -
                          position / kDeltaChunk;
}

// A launch goes over its rows in rounds of at most `chunks` chunks of each, so
// that the workspace holds those of a round. Rounds pass states on as they
// store them, so their number changes no bit.
struct DeltaPrefillPlan {
  int64_t rounds;  // 0: the workspace is too small
  int64_t chunks;  // of a row in a round
  int64_t total;   // of all rows in a round, at most
};
constexpr DeltaPrefillPlan PlanDeltaPrefill(int64_t tokens, int64_t rows,
                                            int64_t capacity) {
  const int64_t longest = tokens / kDeltaChunk + 2;
  const int64_t all = tokens / kDeltaChunk + 2 * rows;
  if (all <= capacity) return {1, longest, all};
  const int64_t chunks = rows > 0 ? capacity / rows : 0;
  if (chunks == 0) return {0, 0, 0};
  return {(longest + chunks - 1) / chunks, chunks, chunks * rows};
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREFILL_PLAN_H_
