#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/element_type.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Linear attention in which every token sees its whole sequence, with an output
// gate, on the GPU:
//
//   q̃ = scale · position(act_q(q)), k̃ = position(act_k(k))
//   S = Σ_j k̃_j v_jᵀ,   o_i = act_g(g_i) ⊙ Sᵀ q̃_i
//
// LaunchLinearStep continues from S. Only inputs, outputs and S (also as a
// bfloat16 factor, in the workspace) cross global memory.
//
// Every pointer is device memory and 16-byte aligned; launch arguments do not
// change from step to step. q, k, v and g are bfloat16. Products are of
// bfloat16 factors (q̃, k̃, v and S), sums are float32; outputs are rounded to
// bfloat16, in either type. silu is computed to about 2⁻¹¹ of its argument.
// Softmax of q over its features may be rounded before the division by its sum,
// which is then applied to outputs.
//
// A row's results depend on that row alone: bitwise the same in any batch.
struct LinearNoncausalParams {
  int64_t num_heads;  // H
  int64_t head_dim;   // D, a multiple of 8, for kRotate of 16; at most 128
  int64_t value_dim;  // E, a multiple of 8, at most 128

  // Flattened tokens. Row b owns tokens query_start[b] ... query_start[b + 1],
  // possibly none: then its slot is not touched.
  const void* q;               // [tokens, H, D]
  const void* k;               // [tokens, H, D]
  const void* v;               // [tokens, H, E]
  const void* g;               // [tokens, H, E]; null: no gate
  int64_t stride;              // elements between tokens of q, k, v and g; of 8
  ElementType out_type;        // of out: kBFloat16 or kFloat32
  void* out;                   // [tokens, H, E]
  int64_t out_stride;          // a multiple of 8
  const int32_t* query_start;  // [max_rows + 1]

  int64_t max_rows;          // of the launch, at most 65535, and 2^27 / H
  const int32_t* rows;       // [1] rows in use, null: all; of the others
                             // nothing is read but query_start, nothing written
  const int32_t* slots;      // [max_rows] unless states is null. Slot 0 is the
                             // sink: a row in it reads no token and writes no
                             // state, and its out is 0.
  const int64_t* positions;  // [max_rows] of each row's first token; may be
                             // null when position is kNone

  Activation q_activation;  // kNone, kSilu or kSoftmax (over the features)
  Activation k_activation;
  Activation g_activation;  // kNone or kSilu
  // Softmax over the sequence, of each feature, in place of the activation. The
  // tensor is then read twice.
  bool q_sequence_softmax;
  bool k_sequence_softmax;

  LrpeType position;
  const uint64_t* phase_steps;  // [angles] of LrpePhaseSteps, or [H, angles]
  int64_t phase_head_stride;    // 0: one set of angles for all heads
  float scale;                  // of q̃; 1 for none

  // float32 S, written: slot s of this layer begins at states + s · slot_stride
  // and is [H, Dk, E] with Dk = LrpeOutputDim(position, D). Null: not kept.
  float* states;
  int64_t slot_stride;  // in elements, a multiple of 4

  // LinearNoncausalWorkspaceBytes, 128-byte aligned, all zeros when it was
  // allocated. It serves one launch at a time, of any shape and kind for which
  // it is large enough. Null for a kind that needs none.
  void* workspace;
};

inline constexpr int64_t kLinearNoncausalMaxDim = 128;

// Size of LinearNoncausalParams::workspace, for the kind of layer (position and
// softmax over the sequence; no other field is read) and the current device:
// 17.3 MB with kCosine on an H100 or H200, 8.7 without; 0 if the kind needs
// none, or the device does not run the kernel.
int64_t LinearNoncausalWorkspaceBytes(const LinearNoncausalParams& params);

// cudaErrorInvalidValue for a shape that the comments do not allow, a pointer
// that is missing or not aligned, or a kind without a workspace, which only
// kernels/seeds has (LaunchLinearNoncausalSeed); cudaErrorNotSupported on a
// device of compute capability other than 9.0, or if the driver makes no tensor
// maps; cudaErrorCooperativeLaunchTooLarge if not all multiprocessors are
// available (a kind with a workspace uses all at once).
cudaError_t LaunchLinearNoncausal(const LinearNoncausalParams& params,
                                  cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_CUDA_H_
