// LinearOperation on the CPU, and what its plan needs.
#include "engine/cpu/cpu_step.h"
#include "engine/models/linear/linear_operation.h"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/linear_attn/linear_attn.h"

namespace recurve {

int64_t LinearOperation::ChunkMultiple(const Device& device,
                                       std::optional<DType> matrices) const {
  return device.gpu && device.hopper && matrices == DType::kBFloat16
             ? kLinearPrefillChunk
             : 1;
}

void LinearOperation::Run(const CpuStep& step) const {
  const Params& p = params_;
  const CpuStep::Position position = step.position(p.position);
  const CpuStep::States states = step.states(p.state);
  const StepBatch& batch = step.batch();
  const Activations q = step.View(p.q);
  const Activations v = step.View(p.v);
  const Activations out = step.View(p.out);
  LinearAttention({p.num_heads,
                   p.head_dim,
                   p.value_dim,
                   q.data,
                   step.View(p.k).data,
                   v.data,
                   q.stride,
                   v.stride,
                   out.data,
                   out.stride,
                   batch.query_start.data(),
                   batch.num_sequences(),
                   p.q_activation,
                   p.k_activation,
                   p.v_activation,
                   position.type,
                   position.cos,
                   position.sin,
                   step.vector(p.decay),
                   states.data,
                   states.stride,
                   batch.slots.data(),
                   p.causal ? nullptr : step.whole_prompt_rows()},
                  step.threads());
}

}  // namespace recurve
