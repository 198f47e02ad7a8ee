// AttentionOperation on the CPU.
#include "engine/cpu/cpu_step.h"
#include "engine/models/attention/attention_operation.h"
#include "kernels/attention/attention.h"

namespace recurve {

void AttentionOperation::Run(const CpuStep& step) const {
  const Params& p = params_;
  const CpuStep::Position position = step.position(p.position);
  const PagedCacheView cache = step.cache(p.pages);
  const Activations k = step.View(p.k);
  AttentionAppend({p.shape,
                   cache,
                   k.data,
                   step.View(p.v).data,
                   k.stride,
                   position.type,
                   position.cos,
                   position.sin,
                   {step.vector(p.k_norm), p.norm_eps}},
                  step.threads());
  const Activations q = step.View(p.q);
  const Activations out = step.View(p.out);
  const Activations gate = gated() ? step.View(p.gate) : Activations();
  AttentionAttend({p.shape,
                   cache,
                   q.data,
                   q.stride,
                   p.scale,
                   position.type,
                   position.cos,
                   position.sin,
                   {step.vector(p.q_norm), p.norm_eps},
                   gate.data,
                   gate.stride,
                   out.data,
                   out.stride},
                  step.threads());
}

}  // namespace recurve
