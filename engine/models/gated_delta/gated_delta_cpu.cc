// GatedDeltaOperation on the CPU, and what its plan needs.
#include "engine/cpu/cpu_step.h"
#include "engine/models/gated_delta/gated_delta_operation.h"
#include "engine/models/gated_delta/gated_delta_params.h"
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
  const CpuStep::States conv_state = step.states(p.conv_state);
  const Activations x = step.View(p.qkv);
  const Activations y = step.View(p.convolved);
  const Activations out = step.View(p.out);
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

  GatedDeltaParams delta = MakeGatedDeltaParams(p, step, y, 0);
  delta.query_start = batch.query_start.data();
  delta.sequences = batch.num_sequences();
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
