// Parameter checks of the linear-attention step's launchers.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_CHECK_H_
#define RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_CHECK_H_

#include <cstdint>

#include "kernels/common/alignment.h"
#include "kernels/linear_attn/linear_dims.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "kernels/seeds/linear_step/linear_step_plan.h"

namespace recurve {

inline bool ValidLinearStep(const LinearStepParams& p) {
  return p.num_heads >= 1 && p.num_heads <= 65535 &&
         ValidLinearDim(p.head_dim) && ValidLinearDim(p.value_dim) &&
         p.max_rows >= 0 && p.max_rows <= 65535 && p.slots != nullptr &&
         p.decay != nullptr && IsThere(p.states) && p.slot_stride % 8 == 0 &&
         (p.positions != nullptr || (p.position == LrpeType::kNone &&
                                     p.state_type == ElementType::kFloat32)) &&
         p.q != nullptr && p.k != nullptr && p.v != nullptr &&
         p.out != nullptr &&
         (p.position == LrpeType::kNone || p.phase_steps != nullptr);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_CHECK_H_
