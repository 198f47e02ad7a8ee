#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_H_

#include <cstdint>

#include "kernels/common/element_type.h"
#include "kernels/linear_attn/gated_delta/delta_gate.h"

namespace recurve {

class ThreadPool;

// Gated delta rule (Gated DeltaNet, Yang et al., 2024; by channel: Kimi Delta
// Attention, 2025). Value head j reads key head j / (Hv / Hk). With unit
// vectors q̂ = scale · q / ‖q‖ and k̂ = k / ‖k‖, ‖x‖² = Σ x² + unit_eps, and the
// gates g and β of delta_gate.h, for each token and value head:
//
//   S ← diag(e^g) S,   d = β (v − Sᵀ k̂),   S ← S + k̂ dᵀ,   o = Sᵀ q̂
//
// Decode is one such update; prefill runs the same updates in order. So a
// prompt gives the same bits for any cuts. This is the specification of the
// forms on the GPU, which add in other orders.
struct GatedDeltaParams {
  int64_t key_heads;    // Hk
  int64_t value_heads;  // Hv, a multiple of Hk
  int64_t head_dim;     // D, of q and k
  int64_t value_dim;    // E

  // Flattened tokens. Sequence b owns rows query_start[b] ... query_start[b+1],
  // possibly none: then its slot is not touched.
  ElementType type;  // of q, k, v, a and b
  const void* q;     // [rows, Hk, D]
  const void* k;     // [rows, Hk, D]
  const void* v;     // [rows, Hv, E]
  int64_t stride;    // elements between rows of q, k and v
  const void* a;     // [rows, Hv], or by channel [rows, Hv, D]: raw decay
  int64_t a_stride;
  const void* b;  // [rows, Hv]: raw step size
  int64_t b_stride;
  ElementType out_type;
  void* out;  // [rows, Hv, E]
  int64_t out_stride;
  const int32_t* query_start;  // [sequences + 1]
  int64_t sequences;

  DeltaGate gate;
  float unit_eps;  // > 0
  float scale;     // of q̂, D^−1/2 as a rule

  // float32 states, updated in place: slot s of this layer begins at states +
  // s · slot_stride and is [Hv, D, E].
  float* states;
  int64_t slot_stride;   // elements
  const int32_t* slots;  // [sequences], each at most once
};
void GatedDelta(const GatedDeltaParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_H_
