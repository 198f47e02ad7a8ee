// TpaOperation on the CPU.
#include "engine/cpu/cpu_step.h"
#include "engine/models/tpa/tpa_operation.h"
#include "kernels/tpa/tpa.h"

namespace recurve {

void TpaOperation::Run(const CpuStep& step) const {
  const Params& p = params_;
  const CpuStep::Position position = step.position(p.position);
  const PagedCacheView cache = step.cache(p.pages);
  const Activations a_k = step.View(p.a_k);
  TpaAppend({p.shape, cache, a_k.data, step.View(p.b_k).data,
             step.View(p.a_v).data, step.View(p.b_v).data, a_k.stride,
             position.type, position.cos, position.sin, p.factor_activation},
            step.threads());
  const Activations b_q = step.View(p.b_q);
  const Activations out = step.View(p.out);
  TpaAttend({p.shape, cache, step.View(p.a_q).data, b_q.data, b_q.stride,
             position.type, position.cos, position.sin, out.data, out.stride},
            step.threads());
}

}  // namespace recurve
