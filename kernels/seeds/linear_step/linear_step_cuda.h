#ifndef RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_CUDA_H_
#define RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/element_type.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// One token of linear attention for each row, on the GPU: the maths of
// kernels/linear_attn/linear_attn.h with
//
//   q̃ = scale · position(act_q(q)),  o = Sᵀ q̃  with S updated first.
//
// Every pointer is device memory and 16-byte aligned; launch arguments do not
// change from step to step, so a captured graph replays while rows, slots and
// positions change.
//
// A row's results depend on that row alone: bitwise the same in any batch.
struct LinearStepParams {
  int64_t num_heads;  // H
  int64_t head_dim;   // D, of q and k; a multiple of 8, at most 256
  int64_t value_dim;  // E, a multiple of 8, at most 256

  ElementType io_type;  // of q, k, v and out
  const void* q;        // [max_rows, H, D]
  const void* k;        // [max_rows, H, D]
  const void* v;        // [max_rows, H, E]
  int64_t stride;       // elements between rows of q, k and v
  void* out;            // [max_rows, H, E]
  int64_t out_stride;

  int64_t max_rows;          // of the launch, at most 65535
  const int32_t* rows;       // [1] rows in use, null: all; the others' out is
                             // left alone
  const int32_t* slots;      // [max_rows], each at most once. Slot 0 is the
                             // sink: a row in it reads and writes no state, and
                             // its out is 0.
  const int64_t* positions;  // [max_rows], >= 0. May be null when position is
                             // kNone and the state is float32.

  Activation q_activation;
  Activation k_activation;
  Activation v_activation;

  LrpeType position;
  const uint64_t* phase_steps;  // [angles] of LrpePhaseSteps, or [H, angles]
  int64_t phase_head_stride;    // 0: one set of angles for all heads
  float scale;                  // of q̃; 1 for none

  const float* decay;  // [H] λ, in [0, 1]: e^x of a log of decay may be 0

  // States, updated in place: slot s of this layer begins at states +
  // s · slot_stride and is [H, Dk, E] with Dk = LrpeOutputDim(position, D).
  // bfloat16 states are rounded stochastically, so that they do not stall: with
  // word i of Philox4x32(rounding_seed, group, position), where `group` counts
  // runs of 8 elements of the slot. rounding_seed should differ by layer.
  ElementType state_type;
  void* states;
  int64_t slot_stride;  // in elements, a multiple of 8
  uint64_t rounding_seed;

  // May start before the previous kernel in the stream ends, and read the
  // states meanwhile (programmatic dependent launch, code for compute
  // capability 9.0). That kernel may write q, k and v, but nothing else of
  // these params; nor may an earlier one, unless one between waits for its
  // predecessor before it lets others start (dependent_launch.cuh: most let
  // them start at once).
  bool overlap_previous;
};

// cudaErrorInvalidValue for a shape that the comments do not allow, or a
// pointer that is missing or not aligned.
cudaError_t LaunchLinearStep(const LinearStepParams& params,
                             cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_CUDA_H_
