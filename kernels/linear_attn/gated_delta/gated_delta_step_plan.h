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

// The form of few heads, with states in registers.
inline constexpr int kDeltaFewDim = 128;  // D and E
inline constexpr int kDeltaFewConv = 4;   // the convolution's width

// The form of many heads, in which a block a multiprocessor streams them.
inline constexpr int kDeltaStreamMaxDim = 128;     // of D and E
inline constexpr int kDeltaStreamBuffers = 3;      // heads in shared memory
inline constexpr int kDeltaStreamMinState = 8192;  // elements: smaller heads
                                                   // have enough blocks
inline constexpr int kDeltaStreamMinHeads = 3;     // of a multiprocessor
// Without a convolution little is read before a state, and with more heads than
// this a multiprocessor blocks of one head share memory more evenly.
// (Measured.)
inline constexpr int kDeltaStreamMaxPlainHeads = 12;

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

// Columns of a block of the form of few heads, or 0 where other forms do the
// step. That form has constant sizes, and a convolution of width `conv` (0:
// none) and a norm both or neither. No bit depends on it.
constexpr int DeltaFewColumns(int64_t key_heads, int64_t value_heads,
                              int64_t head_dim, int64_t value_dim,
                              int64_t sequences, int64_t conv, bool norms,
                              bool by_channel) {
  const bool takes = head_dim == kDeltaFewDim && value_dim == kDeltaFewDim &&
                     conv == (norms ? kDeltaFewConv : 0) && !by_channel &&
                     value_heads * sequences <= kDeltaStepFewHeads;
  if (!takes) return 0;
  for (int columns : {32, kDeltaStepNarrowColumns}) {
    if (DeltaStepCluster(key_heads, value_heads, value_dim, conv != 0, norms,
                         columns) <= kDeltaStepMaxCluster) {
      return columns;
    }
  }
  return 0;
}

// Whether blocks stream heads. The value heads of a key head and sequence are
// dealt to one block, which writes their last inputs; so there are heads for
// all blocks, and the fullest block has at most 3/2 of the mean. No bit depends
// on it.
constexpr bool DeltaStepStreams(int64_t key_heads, int64_t value_heads,
                                int64_t head_dim, int64_t value_dim,
                                int64_t sequences, bool convolves,
                                int multiprocessors) {
  if (multiprocessors < 1 || head_dim > kDeltaStreamMaxDim ||
      value_dim <= kDeltaStepNarrowColumns || value_dim > kDeltaStreamMaxDim ||
      head_dim * value_dim < kDeltaStreamMinState) {
    return false;
  }
  const int64_t groups = key_heads * sequences;
  const int64_t most = (groups + multiprocessors - 1) / multiprocessors;
  const int64_t heads = value_heads * sequences;
  if (!convolves && heads > kDeltaStreamMaxPlainHeads * multiprocessors) {
    return false;
  }
  return heads >= kDeltaStreamMinHeads * multiprocessors &&
         2 * most * multiprocessors <= 3 * groups;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_PLAN_H_
