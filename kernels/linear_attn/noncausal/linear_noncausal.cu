// Launcher of non-causal linear attention: parameter checks.
#include "kernels/common/alignment.h"
#include "kernels/linear_attn/linear_dims.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring.h"

namespace recurve {
namespace {

bool ValidActivation(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kSilu ||
         activation == Activation::kSoftmax;
}

}  // namespace

bool ValidLinearNoncausal(const LinearNoncausalParams& p) {
  return p.num_heads >= 1 && p.num_heads <= 65535 &&
         ValidLinearDim(p.head_dim) && ValidLinearDim(p.value_dim) &&
         p.head_dim <= kLinearNoncausalMaxDim &&
         p.value_dim <= kLinearNoncausalMaxDim &&
         (p.position != LrpeType::kRotate || p.head_dim % 16 == 0) &&
         p.max_rows >= 0 && p.max_rows <= 65535 &&
         p.max_rows * p.num_heads <= int64_t{1} << 27 && IsThere(p.q) &&
         IsThere(p.k) && IsThere(p.v) && IsAligned(p.g) && IsThere(p.out) &&
         (p.out_type == ElementType::kBFloat16 ||
          p.out_type == ElementType::kFloat32) &&
         p.stride % 8 == 0 && p.out_stride % 8 == 0 &&
         p.query_start != nullptr && ValidActivation(p.q_activation) &&
         ValidActivation(p.k_activation) &&
         p.g_activation != Activation::kSoftmax &&
         ValidActivation(p.g_activation) &&
         (p.position == LrpeType::kNone ||
          (p.phase_steps != nullptr && p.positions != nullptr)) &&
         (p.states == nullptr || (p.slots != nullptr && IsAligned(p.states) &&
                                  p.slot_stride % 4 == 0)) &&
         (IsThere(p.workspace, 128) || !LinearNoncausalRingDoes(p));
}

int64_t LinearNoncausalWorkspaceBytes(const LinearNoncausalParams& p) {
  return LinearNoncausalRingDoes(p) ? LinearNoncausalRingWorkspaceBytes(p) : 0;
}

cudaError_t LaunchLinearNoncausal(const LinearNoncausalParams& p,
                                  cudaStream_t stream) {
  if (!ValidLinearNoncausal(p) || !LinearNoncausalRingDoes(p))
    return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  return LaunchLinearNoncausalRing(p, stream);
}

}  // namespace recurve
