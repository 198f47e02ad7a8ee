// Block sizes of the scan of linear attention.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_PLAN_H_

#include <cstdint>

namespace recurve {

struct LinearScanPlan {
  int rows;     // of the state, in a lane's registers
  int columns;  // neighbouring ones, likewise; a block has 32 times as many
};

inline constexpr int kLinearScanWarps = 8;  // that share a column's rows

// The width of a block changes no bit: a column's sum is the same in any width.
// Wide blocks move states faster, once they suffice for all multiprocessors
// (docs/kernels/linear_step.md). With 16 rows by 2 columns a multiprocessor
// holds four blocks, with 4 columns two, 1 to 2% of a step slower. 64 rows
// leave no registers for more columns; 32 rows by 4 columns would take all.
constexpr LinearScanPlan PlanLinearScan(int64_t key_dim, int64_t value_dim,
                                        int64_t num_heads, int64_t sequences,
                                        int multiprocessors) {
  const auto blocks = [&](int64_t columns) {
    return (value_dim + columns - 1) / columns * num_heads * sequences;
  };
  const bool wide = blocks(128) >= 2 * int64_t{multiprocessors};
  if (key_dim <= 2 * kLinearScanWarps) return {2, 1};
  if (key_dim <= 8 * kLinearScanWarps) return {8, wide ? 4 : 1};
  if (key_dim <= 16 * kLinearScanWarps) {
    return {16, 2 * blocks(64) >= 3 * int64_t{multiprocessors} ? 2 : 1};
  }
  if (key_dim <= 32 * kLinearScanWarps) return {32, wide ? 2 : 1};
  return {64, 1};
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_PLAN_H_
