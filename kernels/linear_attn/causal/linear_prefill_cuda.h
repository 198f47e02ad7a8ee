#ifndef RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/element_type.h"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Causal linear attention over whole prompts on the GPU: LaunchLinearStep
// (kernels/seeds/linear_step/linear_step_cuda.h) for many tokens of each row at
// once, by chunks of 64 (Sun et al., 2023; Qin et al., 2024). With q̃, k̃, ṽ and
// S as there, and tokens i, j of a chunk that begins with state S₀:
//
//   o_i = λ^(i+1) S₀ᵀ q̃_i + Σ_{j ≤ i} λ^(i−j) (q̃_i · k̃_j) ṽ_j
//   S   = λ^C S₀ + Σ_j λ^(C−1−j) k̃_j ṽ_jᵀ
//
// Every pointer is device memory and 16-byte aligned; launch arguments do not
// change from step to step.
//
// Precision: products are of bfloat16 factors (of q̃, k̃, ṽ, of S₀ and of the
// scores), sums and the state are float32. So results are good to bfloat16,
// also where io_type or out_type is float32.
//
// Exactness: chunks end at multiples of kLinearPrefillChunk of the absolute
// position, and a row's results depend on that row alone, not on the batch. A
// prompt that is cut gives the same result within rounding; cut at multiples of
// kLinearPrefillChunk, exactly the same bits.
struct LinearPrefillParams {
  int64_t num_heads;  // H
  int64_t head_dim;   // D, of q and k; a multiple of 8, at most 256
  int64_t value_dim;  // E, a multiple of 8, at most 256

  // Flattened tokens. Row b owns tokens query_start[b] ... query_start[b + 1],
  // possibly none: then its slot is not touched.
  ElementType io_type;         // of q, k and v
  ElementType out_type;        // of out
  const void* q;               // [tokens, H, D]
  const void* k;               // [tokens, H, D]
  const void* v;               // [tokens, H, E]
  int64_t stride;              // elements between tokens of q, k and v; of 8
  void* out;                   // [tokens, H, E]
  int64_t out_stride;          // a multiple of 8
  const int32_t* query_start;  // [max_rows + 1]

  int64_t max_rows;          // of the launch, at most 65535
  const int32_t* rows;       // [1] rows in use, null: all; of the others
                             // query_start, slots, positions and fresh may be
                             // read, whatever is there; nothing is written
  const int32_t* slots;      // [max_rows], each at most once. Slot 0 is the
                             // sink: a row in it reads and writes no state, and
                             // its out is 0.
  const int64_t* positions;  // [max_rows] of each row's first token, >= 0
  const int32_t* fresh;      // [max_rows] not 0: the state before the first
                             // token is zero, and what the slot holds is not
                             // read. Null: no row is.

  Activation q_activation;
  Activation k_activation;
  Activation v_activation;

  LrpeType position;
  const uint64_t* phase_steps;  // [angles] of LrpePhaseSteps, or [H, angles]
  int64_t phase_head_stride;    // 0: one set of angles for all heads
  float scale;                  // of q̃; 1 for none

  const float* decay;  // [H] λ, in [0, 1]; null: 1. (Of a log of decay e^x may
                       // be 0, so that a power of it must not be 0 · −∞.)

  // float32 states, updated in place: slot s of this layer begins at states +
  // s · slot_stride and is [H, Dk, E] with Dk = LrpeOutputDim(position, D).
  float* states;
  int64_t slot_stride;  // in elements
};

// cudaErrorInvalidValue for a shape that the comments do not allow, or a
// pointer that is missing or not aligned; cudaErrorNotSupported on a device of
// compute capability other than 9.0.
cudaError_t LaunchLinearPrefill(const LinearPrefillParams& params,
                                cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_CAUSAL_LINEAR_PREFILL_CUDA_H_
