// What decode_matmul_cuda.h takes. Pure functions of sizes.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_MATMUL_PLAN_H_
#define RECURVE_KERNELS_MATMUL_DECODE_MATMUL_PLAN_H_

#include <cstdint>

#include "kernels/matmul/stream_matmul_plan.h"

namespace recurve {

inline constexpr int64_t kDecodeMatmulInputs = 32;
inline constexpr int64_t kDecodeMatmulFloatRows = 8;

// Whether LaunchDecodeMatmul takes float32 rows of this many inputs, on Hopper
// or another device.
constexpr bool DecodeMatmulTakesFloats(int64_t inputs, int64_t rows,
                                       bool hopper) {
  return rows <= kDecodeMatmulFloatRows &&
         (!hopper || StreamMatmulFits(inputs, rows));
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_MATMUL_PLAN_H_
