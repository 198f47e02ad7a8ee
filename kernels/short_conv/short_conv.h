#ifndef RECURVE_KERNELS_SHORT_CONV_SHORT_CONV_H_
#define RECURVE_KERNELS_SHORT_CONV_SHORT_CONV_H_

#include <cstdint>

#include "kernels/common/element_type.h"

namespace recurve {

class ThreadPool;

inline constexpr int64_t kShortConvMinWidth = 2;
inline constexpr int64_t kShortConvMaxWidth = 4;

// Causal depthwise convolution of a few inputs, then SiLU, as in front of gated
// delta rules (Yang et al., 2024). For each channel c and token t:
//
//   y_t = silu(bias + Σ_j w[j] x_(t − W + 1 + j)),   j = 0 ... W − 1
//
// so the newest input has the last weight. Inputs before the first token are
// the sequence's state: its last W − 1 inputs, before the convolution. A new
// sequence's are zero.
//
// A token's sum has one order, so that a prompt gives the same bits for any
// cuts, and in steps.
struct ShortConvParams {
  int64_t channels;  // C
  int64_t width;     // W, kShortConvMinWidth ... kShortConvMaxWidth

  // Flattened tokens. Sequence b owns rows query_start[b] ... query_start[b+1],
  // possibly none: then its slot is not touched.
  ElementType type;  // of x, y and states
  const void* x;     // [rows, C]
  int64_t x_stride;  // elements
  void* y;           // [rows, C]; not x
  int64_t y_stride;
  const int32_t* query_start;  // [sequences + 1]
  int64_t sequences;

  const float* weight;  // [C, W]
  const float* bias;    // [C], or null for none

  // Last inputs, updated in place: slot s of this layer begins at states +
  // s · slot_stride elements and is [W − 1, C], the oldest first.
  void* states;
  int64_t slot_stride;
  const int32_t* slots;  // [sequences], each at most once
};
// REQUIRES: width is in its range. The work is divided by sequences and
// channels.
void ShortConv(const ShortConvParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SHORT_CONV_SHORT_CONV_H_
