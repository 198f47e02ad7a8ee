#ifndef RECURVE_TOOLS_RECURVE_MODEL_CHECKPOINT_PLAN_H_
#define RECURVE_TOOLS_RECURVE_MODEL_CHECKPOINT_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace recurve {

// A tensor of a random checkpoint; its values are normally distributed.
struct PlannedTensor {
  std::string name;
  std::vector<int64_t> shape;
  double mean = 0;
  double deviation = 0;

  int64_t num_elements() const;
};

// A checkpoint that is still to be written.
// NOLINTNEXTLINE(bugprone-exception-escape): the library's move only asserts.
struct CheckpointPlan {
  nlohmann::ordered_json config;  // config.json
  std::vector<PlannedTensor> tensors;

  int64_t parameters() const;
};

// The deviations that the planners choose keep activations of the order of 1
// through any number of layers, let attention tell tokens apart, and spread the
// logits over a few units, so that a random model is neither constant nor
// degenerate.

// A T6 checkpoint with the tensor names and config keys of the authors' code
// (tensorgi/T6), plus `t6_variant`.
struct T6Sizes {
  int64_t layers;
  int64_t hidden;  // n_embd; the MLP has floor(8/3 hidden) units
  int64_t heads;
  int64_t head_dim;
  int64_t q_rank;
  int64_t rank;
  int64_t vocab;
  int64_t max_positions;  // block_size
};
CheckpointPlan PlanT6(const T6Sizes& sizes);

// A checkpoint in Recurve's own format (docs/model-format.md). Every
// `tpa_every`-th layer is TPA, the others are linear attention; 0: all are
// linear.
struct RecurveSizes {
  int64_t layers;
  int64_t hidden;
  int64_t inner;
  int64_t head_dim;
  int64_t linear_heads;
  int64_t tpa_every;
  int64_t tpa_heads;
  int64_t q_rank;
  int64_t kv_rank;
  int64_t gate_rank;
  int64_t vocab;  // at least 258
  int64_t max_positions;
};
CheckpointPlan PlanRecurve(const RecurveSizes& sizes);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_CHECKPOINT_PLAN_H_
