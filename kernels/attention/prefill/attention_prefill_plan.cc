#include "kernels/attention/prefill/attention_prefill_plan.h"

#include <algorithm>
#include <limits>

namespace recurve {

AttentionPrefillPlan PlanAttentionPrefill(
    const AttentionShape& shape, WeightType element,
    const AttentionPrefillLimits& limits) {
  AttentionPrefillPlan plan = {};
  if (!AttentionSupports(shape) || limits.max_rows < 1 ||
      limits.max_rows > kAttentionMaxRows || limits.max_tokens < 1 ||
      limits.max_tokens > std::numeric_limits<int32_t>::max()) {
    return plan;
  }
  plan.shape = shape;
  plan.element = element;
  const int64_t widest = std::max(shape.head_dim, shape.value_dim);
  plan.width = widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
  plan.query_tile = plan.width == 64 ? 192 : 128;
  plan.key_tile = plan.width == 256 ? 64 : 128;
  plan.max_rows = limits.max_rows;
  // Each row rounded up to whole tiles; a row without tokens has none.
  plan.query_tiles = static_cast<int>(
      std::min((limits.max_tokens + plan.query_tile - 1) / plan.query_tile +
                   limits.max_rows,
               limits.max_tokens));
  plan.schedule_bytes = AttentionPrefillSchedule(plan.query_tiles).bytes;
  if (element == WeightType::kFloat32) return plan;
  plan.query_bytes =
      int64_t{2} * plan.query_tiles * plan.query_tile * plan.width;
  plan.scratch_bytes = shape.num_heads * plan.query_bytes;
  return plan;
}

}  // namespace recurve
