// What the launchers of LRPE accept.
#ifndef RECURVE_KERNELS_LRPE_LRPE_CHECK_H_
#define RECURVE_KERNELS_LRPE_LRPE_CHECK_H_

#include <cstdint>

#include "kernels/lrpe/lrpe_cuda.h"

namespace recurve {

inline bool ValidLrpe(const CudaLrpeParams& p) {
  return (p.position == LrpeType::kRotate || p.position == LrpeType::kCosine) &&
         p.batch >= 0 && p.length >= 0 && p.batch <= INT32_MAX &&
         p.length <= INT32_MAX &&
         (p.length == 0 || p.batch <= INT32_MAX / p.length) &&
         p.num_heads >= 1 && p.num_heads <= 65535 && p.dim >= 8 &&
         p.dim <= 256 && p.dim % 8 == 0 && p.x != nullptr && p.y != nullptr &&
         p.phase_steps != nullptr && p.offsets != nullptr;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_CHECK_H_
