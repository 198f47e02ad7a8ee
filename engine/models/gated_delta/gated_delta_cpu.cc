// GatedDeltaOperation on the CPU, and what its plan needs.
#include "engine/cpu/cpu_step.h"
#include "engine/models/gated_delta/gated_delta_operation.h"
#include "kernels/linear_attn/gated_delta/gated_delta.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_plan.h"
#include "kernels/norm/norm.h"
#include "kernels/short_conv/short_conv.h"

namespace recurve {

int64_t GatedDeltaOperation::ChunkMultiple(
    const Device& device, std::optional<DType> matrices) const {
  return device.gpu && matrices == DType::kBFloat16 ? kDeltaChunk : 1;
}

void GatedDeltaOperation::Run(const CpuStep& step) const {
  const Params& p = params_;
  const StepBatch& batch = step.batch();
  const CpuStep::States state = step.states(p.state);
  const CpuStep::States conv_state = step.states(p.conv_state);
  const Activations x = step.View(p.qkv);
  const Activations y = step.View(p.convolved);
  const Activations out = step.View(p.out);
  const Activations a = step.View(p.a);
  const Activations b = step.View(p.b);
  const Activations z = step.View(p.z);

  ShortConvParams conv = {};
  conv.channels = p.channels();
  conv.width = p.conv_width;
  conv.type = ElementType::kFloat32;
  conv.x = x.data;
  conv.x_stride = x.stride;
  conv.y = y.data;
  conv.y_stride = y.stride;
  conv.query_start = batch.query_start.data();
  conv.sequences = batch.num_sequences();
  conv.weight = step.vector(p.conv_weight);
  conv.states = conv_state.data;
  conv.slot_stride = conv_state.stride;
  conv.slots = batch.slots.data();
  ShortConv(conv, step.threads());

  GatedDeltaParams delta = {};
  delta.key_heads = p.key_heads;
  delta.value_heads = p.value_heads;
  delta.head_dim = p.head_dim;
  delta.value_dim = p.value_dim;
  delta.type = ElementType::kFloat32;
  delta.q = y.data;
  delta.k = y.data + p.key_heads * p.head_dim;
  delta.v = y.data + 2 * p.key_heads * p.head_dim;
  delta.stride = y.stride;
  delta.a = a.data;
  delta.a_stride = a.stride;
  delta.b = b.data;
  delta.b_stride = b.stride;
  delta.out_type = ElementType::kFloat32;
  delta.out = out.data;
  delta.out_stride = out.stride;
  delta.query_start = batch.query_start.data();
  delta.sequences = batch.num_sequences();
  delta.gate = {
      p.decay, false,       step.vector(p.a_log), step.vector(p.dt_bias),
      0,       p.beta_scale};
  delta.unit_eps = p.unit_eps;
  delta.scale = p.scale;
  delta.states = state.data;
  delta.slot_stride = state.stride;
  delta.slots = batch.slots.data();
  GatedDelta(delta, step.threads());

  GatedNorm(
      {{out.data, out.stride, step.vector(p.norm_weight), out.data, out.stride,
        batch.num_tokens(), out.cols, p.value_heads, p.norm_eps},
       z.data,
       z.stride,
       p.gate,
       /*gate_after_norm=*/true},
      step.threads());
}

}  // namespace recurve
