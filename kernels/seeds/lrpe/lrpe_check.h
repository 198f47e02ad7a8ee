// Parameter checks of LRPE's launchers.
#ifndef RECURVE_KERNELS_SEEDS_LRPE_LRPE_CHECK_H_
#define RECURVE_KERNELS_SEEDS_LRPE_LRPE_CHECK_H_

#include <cstdint>

#include "kernels/common/alignment.h"
#include "kernels/seeds/lrpe/lrpe_cuda.h"

namespace recurve {

inline bool ValidLrpe(const CudaLrpeParams& p) {
  // Multiples of a power of two if all strides are.
  const int64_t strides = p.x_batch_stride | p.x_token_stride |
                          p.x_head_stride | p.y_batch_stride |
                          p.y_token_stride | p.y_head_stride;
  return (p.position == LrpeType::kRotate || p.position == LrpeType::kCosine) &&
         p.batch >= 0 && p.length >= 0 && p.batch <= INT32_MAX &&
         p.length <= INT32_MAX &&
         (p.length == 0 || p.batch <= INT32_MAX / p.length) &&
         p.num_heads >= 1 && p.num_heads <= 65535 && p.dim >= 8 &&
         p.dim <= 256 && p.dim % 8 == 0 && IsThere(p.x) && IsThere(p.y) &&
         strides % (p.type == ElementType::kFloat32 ? 4 : 8) == 0 &&
         p.phase_steps != nullptr && p.offsets != nullptr;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LRPE_LRPE_CHECK_H_
