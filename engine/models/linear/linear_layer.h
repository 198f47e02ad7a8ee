#ifndef RECURVE_ENGINE_MODELS_LINEAR_LINEAR_LAYER_H_
#define RECURVE_ENGINE_MODELS_LINEAR_LINEAR_LAYER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/factor_tensors.h"
#include "engine/models/layer_part.h"
#include "engine/models/norm_definition.h"
#include "engine/program/position.h"
#include "kernels/common/activation.h"

namespace recurve {

// Linear attention; maths in kernels/linear_attn/linear_attn.h.
struct LinearConfig {
  int64_t num_heads = 0;
  int64_t head_dim = 0;   // D of q and k
  int64_t value_dim = 0;  // E of v
  // Queries, and keys and values, are expanded from factors of these ranks
  // (kernels/tpa/append/expand_factors.h); 0: projected directly.
  int64_t q_rank = 0;
  int64_t kv_rank = 0;
  // RMSNorms of each head, before the activation and the position.
  std::optional<NormDefinition> q_norm, k_norm, v_norm;
  Activation q_activation = Activation::kNone;
  Activation k_activation = Activation::kNone;
  Activation v_activation = Activation::kNone;
  PositionConfig position;
  std::vector<double> log_decay;  // [num_heads], each <= 0
  // False: the tokens of the prompt, which is what the first command of a
  // sequence appends, all see the state after the prompt; later tokens see what
  // precedes them. Such a layer has no decay.
  bool causal = true;
  // Output gate W2(W1 x), or W1 x; absent: the output is only normalised. A
  // gate needs an RMSNorm.
  std::optional<Activation> output_gate;
  bool gate_after_norm = false;
};

struct LinearTensors {
  // [H·D, C], [H·D, C], [H·E, C] in b; with a rank, factors.
  FactorTensors q, k, v;
  // [G, C], empty without a gate, and [H·E, G], empty if the first is all of
  // it: [H·E, C].
  MatrixPart gate_in, gate_out;
  MatrixPart out;  // [C, H·E]
};

// A layer's mixer. The norm, over H·E features, comes before `out`.
struct LinearDefinition {
  LinearConfig config;
  LinearTensors tensors;
  std::optional<NormDefinition> norm;
};

// x / sqrt(Σ x² + eps) over each head's features, for q_norm and the others.
NormDefinition L2NormOfHeads(int64_t num_heads, int64_t dim, double eps);

class LinearLayer : public LayerPart {
 public:
  explicit LinearLayer(LinearDefinition definition)
      : definition_(std::move(definition)) {}

  const LinearDefinition& definition() const { return definition_; }

  absl::string_view name() const override { return "linear"; }
  std::string Describe() const override;
  void Emit(ValueId in, ValueId residual,
            ProgramBuilder& program) const override;
  absl::Status CheckGpu(absl::string_view where) const override;

 private:
  const LinearDefinition definition_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_LINEAR_LINEAR_LAYER_H_
