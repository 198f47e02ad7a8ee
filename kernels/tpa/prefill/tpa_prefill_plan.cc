#include "kernels/tpa/prefill/tpa_prefill_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

TpaPrefillPlan PlanTpaPrefill(const TpaShape& shape,
                              const TpaPrefillLimits& limits) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TpaPrefillPlan plan = {};
  const int64_t widest = std::max(shape.head_dim, shape.value_dim);
  if (!TpaDecodeSupports(shape) || limits.max_rows < 1 ||
      limits.max_rows > kTpaPrefillMaxRows || limits.max_tokens < 1 ||
      limits.max_tokens > kMost || limits.max_context < 1 ||
      limits.max_context > kMost) {
    return plan;
  }
  plan.width = widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
  plan.groups = plan.width == 64 ? 3 : 2;
  plan.query_tile = 64 * plan.groups;
  plan.key_tile = plan.width == 256 ? 64 : 128;
  plan.max_rows = limits.max_rows;
  // Each row rounded up to whole tiles; a row without tokens has none.
  const auto tiles = [&](int64_t tokens, int64_t tile) {
    return static_cast<int>(
        std::min(CeilDiv(tokens, tile) + limits.max_rows, tokens));
  };
  plan.query_tiles = tiles(limits.max_tokens, plan.query_tile);
  plan.key_tiles = tiles(limits.max_context, plan.key_tile);
  plan.schedule_bytes =
      TpaPrefillSchedule(plan.query_tiles, plan.key_tiles).bytes;
  plan.query_bytes =
      int64_t{2} * plan.query_tiles * plan.query_tile * plan.width;
  plan.context_bytes = int64_t{4} * plan.key_tiles * plan.key_tile * plan.width;
  const int64_t head_bytes = plan.query_bytes + plan.context_bytes;
  const int64_t fit =
      std::clamp<int64_t>(limits.max_scratch / head_bytes, 1, shape.num_heads);
  // Groups of nearly the same size.
  const int64_t count = CeilDiv(shape.num_heads, fit);
  plan.head_group = static_cast<int>(CeilDiv(shape.num_heads, count));
  plan.scratch_bytes = plan.head_group * head_bytes;
  return plan;
}

}  // namespace recurve
