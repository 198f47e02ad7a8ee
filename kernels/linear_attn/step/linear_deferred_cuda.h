#ifndef RECURVE_KERNELS_LINEAR_ATTN_STEP_LINEAR_DEFERRED_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_STEP_LINEAR_DEFERRED_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear_attn/linear_attn.h"
#include "kernels/linear_attn/step/linear_deferred_plan.h"

namespace recurve {

// kernels/linear_attn/linear_attn.h on the GPU, for generated tokens, with
// deferred writes of the state. A slot holds a state Sc, which covers the
// tokens up to the last fold, and a ring of the k̃ and ṽ of the n tokens since:
//
//   o = λ^(n+1) Scᵀ q̃ + Σ_j λ^(n−j) (q̃ · k̃_j) ṽ_j,   j = 0 ... n
//
// where k̃_n and ṽ_n are those of the token itself. Every kLinearRing-th token,
// by its position, folds the ring into the state:
//
//   Sc ← λ^(n+1) Sc + Σ_j λ^(n−j) k̃_j ṽ_jᵀ
//
// So most tokens only read the state: about 0.6 of the traffic of the scan.
//
// Exactness. A token's arithmetic depends on Sc, on the ring and on n, and n on
// its position and on where the last prompt ended (LinearPendingAt). All of
// this is a function of the sequence's tokens and their kinds. It depends on
// neither the batch, nor on how tokens are divided among launches: state and
// ring after a launch are the same in each case, and sums have one order.
struct LinearDeferredParams {
  LinearAttentionParams of;    // whole is null; slots[i] at most once
  const int64_t* positions;    // [sequences] of the first row
  const int64_t* prompt_ends;  // [sequences] StepRun::prompt_end
  // Slot s: rings + s · of.slot_stride, LinearRingElements.
  float* rings;
};

// A dependent launch; `early` and the sink (slot 0) as for LaunchLinearScan.
// cudaErrorInvalidValue for sizes that LinearDeferredDoes does not take, or
// more than 65535 heads or sequences, or pointers or strides not aligned to 16
// bytes.
cudaError_t LaunchLinearDeferred(const LinearDeferredParams& params, bool early,
                                 cudaStream_t stream);

// Folds the rings into the states, which then cover all positions[i] tokens
// before the first row: before other kernels read them. Rows are not read.
cudaError_t LaunchLinearFold(const LinearDeferredParams& params,
                             cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_STEP_LINEAR_DEFERRED_CUDA_H_
