#ifndef RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_PARAMS_H_
#define RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_PARAMS_H_

#include <cstdint>

#include "engine/models/gated_delta/gated_delta_operation.h"
#include "engine/program/activations.h"
#include "kernels/linear_attn/gated_delta/gated_delta.h"

namespace recurve {

// What the kernels are told of a layer, on the CPU and on a GPU, from row
// `first` of the step on; `qkv` begins there. The caller adds the sequences.
// View: CpuStep or CudaView.
template <typename View>
GatedDeltaParams MakeGatedDeltaParams(const GatedDeltaOperation::Params& p,
                                      const View& view, const Activations& qkv,
                                      int64_t first) {
  const Activations a = view.View(p.a).RowsFrom(first);
  const Activations b = view.View(p.b).RowsFrom(first);
  const Activations out = view.View(p.out).RowsFrom(first);
  const auto states = view.states(p.state);
  const int64_t keys = p.key_heads * p.head_dim;
  GatedDeltaParams params = {};
  params.key_heads = p.key_heads;
  params.value_heads = p.value_heads;
  params.head_dim = p.head_dim;
  params.value_dim = p.value_dim;
  params.type = ElementType::kFloat32;
  params.q = qkv.data;
  params.k = qkv.data + keys;
  params.v = qkv.data + 2 * keys;
  params.stride = qkv.stride;
  params.a = a.data;
  params.a_stride = a.stride;
  params.b = b.data;
  params.b_stride = b.stride;
  params.out_type = ElementType::kFloat32;
  params.out = out.data;
  params.out_stride = out.stride;
  params.gate = {
      p.decay, false,       view.vector(p.a_log), view.vector(p.dt_bias),
      0,       p.beta_scale};
  params.unit_eps = p.unit_eps;
  params.scale = p.scale;
  params.states = states.data;
  params.slot_stride = states.stride;
  return params;
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_PARAMS_H_
