#ifndef RECURVE_TOOLS_RECURVE_MODEL_HYBRID_PLAN_H_
#define RECURVE_TOOLS_RECURVE_MODEL_HYBRID_PLAN_H_

#include <cstdint>

#include "tools/recurve_model/checkpoint_plan.h"

namespace recurve {

// Checkpoints of the hybrid families of docs/families.md, with the tensor names
// and config keys of the published ones.

// Gated delta rules, every fourth layer attention.
struct DeltaSizes {
  int64_t layers;
  int64_t hidden;
  int64_t inner;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t key_heads;  // of the delta rule
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t vocab;
  bool tied;
  int64_t max_positions;
};
CheckpointPlan PlanQwen35(const DeltaSizes& sizes);
CheckpointPlan PlanOlmoHybrid(const DeltaSizes& sizes);

struct SalaSizes {
  int64_t layers;
  int64_t hidden;
  int64_t inner;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t vocab;
  int64_t max_positions;
};
// Attention in layers 0, 9, 16, 17, 22 and the last three of 32, as published;
// of another number, in the first and the last.
CheckpointPlan PlanMiniCpmSala(const SalaSizes& sizes);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_HYBRID_PLAN_H_
