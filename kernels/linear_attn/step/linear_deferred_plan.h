// Sizes of the deferred step of linear attention: plain arithmetic.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_STEP_LINEAR_DEFERRED_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_STEP_LINEAR_DEFERRED_PLAN_H_

#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/linear_attn/scan/linear_scan_limits.h"

namespace recurve {

// Tokens of a ring: a power of two. Rings of 4, 8 and 16 move about the same
// bytes; that of 8 is the fastest (docs/kernels/linear_step.md).
inline constexpr int kLinearRing = 8;
// Columns of a state that a block computes, and 32 of its rows a warp.
inline constexpr int kLinearRingColumns = 64;
inline constexpr int kLinearRingRows = 32;

constexpr bool LinearDeferredDoes(int64_t key_dim, int64_t value_dim) {
  return key_dim >= 8 && key_dim <= kLinearScanMaxKeyDim && key_dim % 8 == 0 &&
         value_dim >= 8 && value_dim <= kLinearScanMaxValueDim &&
         value_dim % 8 == 0;
}

// Blocks that cover a state's columns. Each has a ring of its own, with k̃
// next to its columns of ṽ, so that no block reads what another one writes.
constexpr int64_t LinearRingTiles(int64_t value_dim) {
  return (value_dim + kLinearRingColumns - 1) / kLinearRingColumns;
}
// Elements of the rings of a slot: [H, tiles, ring, Dk + columns].
constexpr int64_t LinearRingElements(int64_t num_heads, int64_t key_dim,
                                     int64_t value_dim) {
  return num_heads * LinearRingTiles(value_dim) * kLinearRing *
         (key_dim + kLinearRingColumns);
}

// Tokens [first, first + count) of a sequence, which its ring holds and its
// state lacks when the next token has position `position` and the last prompt
// ended at `prompt_end`: those after the last fold, which follows each token t
// with (t + 1) mod kLinearRing = 0, or after the prompt.
struct LinearPending {
  int64_t first;
  int count;
};
RECURVE_HOST_DEVICE constexpr LinearPending LinearPendingAt(
    int64_t position, int64_t prompt_end) {
  const int64_t fold = position / kLinearRing * kLinearRing;
  const int64_t first = prompt_end > fold ? prompt_end : fold;
  return {first, static_cast<int>(position > first ? position - first : 0)};
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_STEP_LINEAR_DEFERRED_PLAN_H_
