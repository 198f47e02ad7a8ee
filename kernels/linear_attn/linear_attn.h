#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_ATTN_H_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_ATTN_H_

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

class ThreadPool;

// Causal linear attention with a recurrent state (Katharopoulos et al., 2020;
// decay as in TransNormerLLM, Qin et al., 2023). For each head:
//
//   q̃ = position(act_q(q)), k̃ = position(act_k(k)), ṽ = act_v(v)
//   S ← λ S + k̃ ṽᵀ,   o = Sᵀ q̃
//
// Decode is one such update; prefill runs the same updates in order, with the
// state of a head in the innermost cache. So a prompt gives the same bits for
// any cuts.
//
// Tokens of a whole prompt (prefix-LM) all see its final state: first their
// updates, in order, then o_i = Sᵀ q̃_i for each of them.
struct LinearAttentionParams {
  int64_t num_heads;  // H
  int64_t head_dim;   // D, of q and k before the position encoding
  int64_t value_dim;  // E

  // Flattened tokens. Sequence b owns rows query_start[b] ... query_start[b+1].
  const float* q;  // [rows, H, D]
  const float* k;  // [rows, H, D]
  const float* v;  // [rows, H, E]
  int64_t stride;  // elements between rows of q and of k
  int64_t v_stride;
  float* out;  // [rows, H, E]
  int64_t out_stride;
  const int32_t* query_start;  // [sequences + 1]
  int64_t sequences;

  Activation q_activation;
  Activation k_activation;
  Activation v_activation;

  LrpeType position;
  const float* cos;  // [rows, angles] of LrpeTable, unused for kNone
  const float* sin;

  const float* decay;  // [H] λ, in [0, 1]: e^x of a log of decay may be 0

  // States, updated in place: slot s of this layer begins at states +
  // s · slot_stride and is [H, Dk, E] with Dk = LrpeOutputDim(position, D).
  float* states;
  int64_t slot_stride;
  const int32_t* slots;  // [sequences], each at most once

  // [sequences] number of the sequence's first rows here that are a whole
  // prompt; 0 or null: none.
  const int32_t* whole;
};
void LinearAttention(const LinearAttentionParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_ATTN_H_
