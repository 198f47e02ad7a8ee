#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/linear_attn/gated_delta/gated_delta.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_plan.h"

namespace recurve {

// gated_delta.h on the GPU for generated tokens: one update a token, in order,
// with a head's state on the multiprocessor. On its way the short convolution in
// front (short_conv.h), and the gated norm behind:
//
//   y = RMSNorm(o) ⊙ norm_weight ⊙ act(z),   over the E features of a head
//
// Every pointer is device memory. A token's bits depend on its sequence alone:
// not on the batch, nor on how tokens are divided among launches.
struct GatedDeltaStepParams {
  // of.out is y, or o without a norm. Slot 0 is the sink: its rows read and
  // write no state, and their out is 0.
  GatedDeltaParams of;

  // q, k and v are then inputs of the convolution. Its channels are [Hk, D] of
  // q, [Hk, D] of k and [Hv, E] of v, C together. Null: none.
  const float* conv_weight;  // [C, W]
  const float* conv_bias;    // [C], or null
  int64_t conv_width;        // W, 2 to 4
  void* conv_states;         // as ShortConvParams::states, of type of.type
  int64_t conv_slot_stride;  // elements

  const float* norm_weight;  // [E]; null: no norm
  float norm_eps;            // added to the mean of squares
  const void* z;             // [rows, Hv, E], of type of.type
  int64_t z_stride;
  Activation activation;  // of z: kSilu or kSigmoid
};

// A dependent launch. With `early`, query_start, slots, states, weights and
// last inputs are read before the previous kernel in the stream ends: none of
// those still running may write them.
//
// cudaErrorInvalidValue for sizes that DeltaStepDoes not take, a cluster of
// more than kDeltaStepMaxCluster blocks, more than 65535 sequences, a missing
// pointer, or states not aligned to 16 bytes; cudaErrorNotSupported on devices
// of compute capability other than 9.0.
cudaError_t LaunchGatedDeltaStep(const GatedDeltaStepParams& params, bool early,
                                 cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_CUDA_H_
