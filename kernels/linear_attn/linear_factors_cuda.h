#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_FACTORS_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_FACTORS_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// The factors of linear attention, for prompt kernels that take them as they
// are (LrpeType::kNone, Activation::kNone):
//
//   q̃ = position(act_q(q)), k̃ = position(act_k(k)), ṽ = act_v(v)
//
// from float32, computed in float32 and rounded once, to bfloat16. A token's
// results depend on that token alone. Every pointer is device memory and
// 16-byte aligned.
struct LinearFactorsParams {
  int64_t tokens;
  int64_t num_heads;  // H
  int64_t head_dim;   // D, of q and k; a multiple of 8, at most 256
  int64_t value_dim;  // E, a multiple of 8, at most 256

  const float* q;  // [tokens, H, D]
  const float* k;  // [tokens, H, D]
  const float* v;  // [tokens, H, E]
  int64_t stride;  // elements between tokens of q, k and v; of 4

  // kSoftmax is over the features of a head.
  Activation q_activation;
  Activation k_activation;
  Activation v_activation;

  LrpeType position;
  const float* cos;  // [tokens, LrpeAngles(position, D)]; null for kNone
  const float* sin;

  // bfloat16; Dk = LrpeOutputDim(position, D).
  uint16_t* q_factors;     // [tokens, H, Dk]
  uint16_t* k_factors;     // [tokens, H, Dk]
  uint16_t* v_factors;     // [tokens, H, E]
  int64_t factors_stride;  // elements between tokens; of 8
};

// cudaErrorInvalidValue for a shape that the comments do not allow, or a
// pointer that is missing or not aligned.
cudaError_t LaunchLinearFactors(const LinearFactorsParams& params,
                                cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_FACTORS_CUDA_H_
