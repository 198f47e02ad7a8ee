// How a linear-attention prefill is cut into thread blocks: plain arithmetic,
// testable without a GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_PLAN_H_

#include <cstdint>

#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Chunks end at multiples of this many tokens.
inline constexpr int kLinearPrefillChunk = 64;

// A state is cut into parts of 64 of its Dk rows (a key slice) by 64 of its E
// columns. A part stays in the registers of one warpgroup for the whole row of
// the batch; outputs are summed over the key slices, which are the blocks of a
// cluster.
inline constexpr int kLinearPrefillSlice = 64;
// Most blocks of a cluster. No supported state needs more, as a test of all of
// them checks.
inline constexpr int kLinearPrefillMaxSlices = 8;
inline constexpr int kLinearPrefillMinStages = 3;  // less does not run
inline constexpr int kLinearPrefillMaxStages = 5;
inline constexpr int kLinearPrefillTileBytes = 64 * 64 * 2;
inline constexpr int kLinearPrefillGroup = 128;  // threads

struct LinearPrefillPlan {
  int key_slices;   // blocks of a cluster
  int groups;       // of 64 columns in a block, 1 or 2
  int value_tiles;  // of `groups` · 64 columns
  int threads;      // of a block: `groups`, one that prepares their work, and
                    // one that finishes it
  int stages;       // chunks of q, k and v on their way
  int exchange_blocks;  // of 8 tokens that a block sums up, at most
  int shared_bytes;
};

// Encoded features of a key slice. Rotate pairs a feature with one of the other
// half, and both are in one slice.
constexpr int LinearPrefillKeySlices(LrpeType position, int64_t head_dim) {
  const int slice = kLinearPrefillSlice;
  const int dim = static_cast<int>(head_dim);
  switch (position) {
    case LrpeType::kRotate:
      return (dim / 2 + slice / 2 - 1) / (slice / 2);
    case LrpeType::kCosine:
      return 2 * ((dim + slice - 1) / slice);
    case LrpeType::kNone:
      break;
  }
  return (dim + slice - 1) / slice;
}

// The cut into key slices, and so the order of every sum, depends on the shape
// of a state alone. How many warpgroups share a block (and its scores) depends
// on the size of the batch too, and changes no bit.
constexpr LinearPrefillPlan PlanLinearPrefill(
    LrpeType position, int64_t head_dim, int64_t value_dim, int64_t num_heads,
    int64_t max_rows, int multiprocessors, int shared_limit) {
  LinearPrefillPlan plan = {};
  plan.key_slices = LinearPrefillKeySlices(position, head_dim);
  const int columns = static_cast<int>((value_dim + kLinearPrefillSlice - 1) /
                                       kLinearPrefillSlice);
  plan.groups =
      columns > 1 &&
              max_rows * num_heads * plan.key_slices * columns > multiprocessors
          ? 2
          : 1;
  plan.value_tiles = (columns + plan.groups - 1) / plan.groups;
  plan.threads = kLinearPrefillGroup * (2 + plan.groups);
  plan.exchange_blocks = (8 + plan.key_slices - 1) / plan.key_slices;
  // In addition to the stages: two tiles of scores, for each group two buffers
  // of partial sums and one tile of outputs, powers of the decay and barriers.
  const int exchange =
      plan.key_slices * plan.exchange_blocks * kLinearPrefillGroup * 16;
  const int fixed = 2 * kLinearPrefillTileBytes +
                    plan.groups * (2 * exchange + kLinearPrefillTileBytes) +
                    1024 + 1024;
  const int stage = (2 + plan.groups) * kLinearPrefillTileBytes;
  plan.stages = (shared_limit - fixed) / stage;
  if (plan.stages > kLinearPrefillMaxStages) {
    plan.stages = kLinearPrefillMaxStages;
  }
  plan.shared_bytes = fixed + plan.stages * stage;
  return plan;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_PLAN_H_
