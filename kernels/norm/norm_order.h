#ifndef RECURVE_KERNELS_NORM_NORM_ORDER_H_
#define RECURVE_KERNELS_NORM_NORM_ORDER_H_

#include <cstdint>

namespace recurve {

// The order in which norm.cu adds up a group's squares: by the lanes of a warp,
// or of half of one, in groups of up to so many columns; in wider ones by the
// 256 threads of a block, which kernels that have such a norm inside repeat
// (decode_rows.cuh, stream_matmul.cu). LayerNorm has an order of its own.
inline constexpr int64_t kNormWarpCols = 512;

}  // namespace recurve

#endif  // RECURVE_KERNELS_NORM_NORM_ORDER_H_
