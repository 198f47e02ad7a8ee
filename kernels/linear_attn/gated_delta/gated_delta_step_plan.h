// How the gated delta step on the GPU is cut into thread blocks: plain
// arithmetic, testable without a GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_PLAN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_PLAN_H_

#include <cstdint>

namespace recurve {

inline constexpr int kDeltaStepMaxDim = 256;        // of D and E
inline constexpr int kDeltaStepColumns = 128;       // of the state, in a block
inline constexpr int kDeltaStepNarrowColumns = 64;  // of few heads
inline constexpr int kDeltaStepFewHeads = 128;      // of all sequences together
inline constexpr int kDeltaStepMaxCluster = 8;

// Sizes that the step takes: E a multiple of 4.
constexpr bool DeltaStepDoes(int64_t key_heads, int64_t value_heads,
                             int64_t head_dim, int64_t value_dim) {
  return key_heads >= 1 && value_heads >= key_heads &&
         value_heads % key_heads == 0 && value_heads <= 65535 &&
         head_dim >= 1 && head_dim <= kDeltaStepMaxDim && value_dim >= 4 &&
         value_dim <= kDeltaStepMaxDim && value_dim % 4 == 0;
}

constexpr int DeltaStepTiles(int64_t value_dim,
                             int columns = kDeltaStepColumns) {
  return static_cast<int>((value_dim + columns - 1) / columns);
}

// Blocks of a cluster: those that share the inputs of a convolution, which are
// read by all before one of them updates the last ones; else those of a head,
// which share a norm. More than kDeltaStepMaxCluster: not supported, the
// convolution must be a launch of its own.
constexpr int DeltaStepCluster(int64_t key_heads, int64_t value_heads,
                               int64_t value_dim, bool convolves, bool norms,
                               int columns = kDeltaStepColumns) {
  const int tiles = DeltaStepTiles(value_dim, columns);
  if (convolves) return static_cast<int>(value_heads / key_heads) * tiles;
  return norms ? tiles : 1;
}

// Columns of a block. Narrow ones give few heads more multiprocessors; sums are
// in the same order, so no bit depends on it.
constexpr int DeltaStepColumns(int64_t key_heads, int64_t value_heads,
                               int64_t value_dim, int64_t sequences,
                               bool convolves, bool norms) {
  const bool few =
      value_heads * sequences <= kDeltaStepFewHeads &&
      DeltaStepCluster(key_heads, value_heads, value_dim, convolves, norms,
                       kDeltaStepNarrowColumns) <= kDeltaStepMaxCluster;
  return few || value_dim <= kDeltaStepNarrowColumns ? kDeltaStepNarrowColumns
                                                     : kDeltaStepColumns;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_PLAN_H_
