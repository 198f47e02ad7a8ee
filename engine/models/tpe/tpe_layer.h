#ifndef RECURVE_ENGINE_MODELS_TPE_TPE_LAYER_H_
#define RECURVE_ENGINE_MODELS_TPE_TPE_LAYER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/layer_part.h"
#include "engine/models/norm_definition.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// Token position encoding by a decaying sum, in place of the embedding (xmixers
// TPE): for each head u ← λ u + x, and x becomes out · norm(gain · u).
//
// It is a linear-attention layer whose keys are 1 and whose queries are the
// gains, with the embedding itself as values: the state is one vector per head.
struct TpeDefinition {
  int64_t num_heads = 0;
  std::vector<float> decay;  // [num_heads] λ
  std::vector<float> gain;   // [num_heads]
  NormDefinition norm;
  MatrixPart out;  // [C, C]
};

class TpeLayer : public LayerPart {
 public:
  explicit TpeLayer(TpeDefinition definition)
      : definition_(std::move(definition)) {}

  absl::string_view name() const override { return "tpe"; }
  std::string Describe() const override;
  void Emit(ValueId in, ValueId residual,
            ProgramBuilder& program) const override;
  absl::Status CheckGpu(absl::string_view where) const override;

 private:
  int64_t value_dim() const {
    return definition_.out.tensor.shape[1] / definition_.num_heads;
  }

  const TpeDefinition definition_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_TPE_TPE_LAYER_H_
