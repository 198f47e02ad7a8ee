#ifndef RECURVE_KERNELS_NORM_NORM_ORDER_H_
#define RECURVE_KERNELS_NORM_NORM_ORDER_H_

#include <cstdint>

namespace recurve {

// The order in which norm.cu adds a group's squares. Groups of up to this many
// columns: by the lanes of a warp or half-warp; wider ones: by a block's 256
// threads, as kernels with such a norm inside repeat (decode_rows.cuh,
// stream_matmul.cu). LayerNorm has its own order.
inline constexpr int64_t kNormWarpCols = 512;

}  // namespace recurve

#endif  // RECURVE_KERNELS_NORM_NORM_ORDER_H_
