// How a linear-attention step is cut into thread blocks: plain arithmetic,
// testable without a GPU.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_PLAN_H_
#define RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_PLAN_H_

#include <cstdint>

namespace recurve {

// A block has a column tile of a state, and a warp 32 of its rows: 16 bytes of
// each of 16 (float32) or 8 (bfloat16) of them in each lane.
inline constexpr int kLinearTileColumns = 64;
inline constexpr int kLinearRowsPerWarp = 32;
inline constexpr int kLinearMaxKeyDim = 512;  // cosine doubles the head dim
inline constexpr int kLinearMaxThreads = kLinearMaxKeyDim;
// Limit for the kernels' registers: five blocks of 128 threads a
// multiprocessor, with 160 KB of loads in flight.
inline constexpr int kLinearBoundThreads = 640;
// Up to this many blocks, about the number resident at once on the target
// devices, latency counts more than bytes in flight.
inline constexpr int64_t kLinearFewBlocks = 1024;

// One block a (row, head, column tile). The cut, and so the order of every sum,
// depends on the shape of the state alone, never on the batch.
struct LinearStepPlan {
  int threads;  // of a block: enough warps for all Dk rows
  int tiles;    // that cover E
};

constexpr LinearStepPlan PlanLinearStep(int64_t key_dim, int64_t value_dim) {
  return {static_cast<int>((key_dim + kLinearRowsPerWarp - 1) /
                           kLinearRowsPerWarp * 32),
          static_cast<int>((value_dim + kLinearTileColumns - 1) /
                           kLinearTileColumns)};
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_PLAN_H_
