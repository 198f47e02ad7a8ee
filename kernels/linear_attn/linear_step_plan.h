// How a linear-attention step is cut into thread blocks: plain arithmetic, so
// that it can be tested without a GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_PLAN_H_

#include <cstdint>

#include "kernels/common/element_type.h"

namespace recurve {

// A lane owns 16 bytes of each of eight state rows; eight lanes lie side by
// side, so a warp covers 32 rows of one column tile.
inline constexpr int kLinearLanesPerRow = 8;
inline constexpr int kLinearRowsPerLane = 8;
inline constexpr int kLinearRowsPerWarp =
    32 / kLinearLanesPerRow * kLinearRowsPerLane;
inline constexpr int kLinearMaxHeadDim = 256;
inline constexpr int kLinearMaxKeyDim = 512;  // cosine doubles the head dim
inline constexpr int kLinearMaxThreads =
    kLinearMaxKeyDim / kLinearRowsPerWarp * 32;

// One block a (row, head, column tile). The cut depends on the shape of the
// state alone, never on the batch, and with it the order of every sum.
struct LinearStepPlan {
  int threads;       // of a block: enough warps for all Dk rows
  int tile_columns;  // of a block
  int tiles;         // that cover E
};

constexpr LinearStepPlan PlanLinearStep(int64_t key_dim, int64_t value_dim,
                                        ElementType state_type) {
  const int vector = state_type == ElementType::kBFloat16 ? 8 : 4;
  const int columns = kLinearLanesPerRow * vector;
  const int warps =
      static_cast<int>((key_dim + kLinearRowsPerWarp - 1) / kLinearRowsPerWarp);
  return {32 * warps, columns,
          static_cast<int>((value_dim + columns - 1) / columns)};
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_STEP_PLAN_H_
