#ifndef RECURVE_ENGINE_MODELS_TPA_TPA_LAYER_H_
#define RECURVE_ENGINE_MODELS_TPA_TPA_LAYER_H_

#include <optional>
#include <string>
#include <utility>

#include "engine/models/factor_tensors.h"
#include "engine/models/layer_part.h"
#include "engine/models/norm_definition.h"
#include "engine/program/position.h"
#include "kernels/common/activation.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// Tensor product attention; maths in kernels/tpa/tpa.h.
struct TpaConfig {
  TpaShape shape;
  PositionConfig position;  // kNone or kRotate
  // For A_k and A_v; softmax over all R·H.
  Activation factor_activation = Activation::kNone;
};

struct TpaTensors {
  FactorTensors q, k, v;  // for direct queries: b is [H·D, C] and there is no a
  MatrixPart out;         // [C, H·E]
};

// A layer's mixer. The norm, over H·E features, comes before `out`.
struct TpaDefinition {
  TpaConfig config;
  TpaTensors tensors;
  std::optional<NormDefinition> norm;
};

class TpaLayer : public LayerPart {
 public:
  explicit TpaLayer(TpaDefinition definition)
      : definition_(std::move(definition)) {}

  const TpaDefinition& definition() const { return definition_; }

  absl::string_view name() const override { return "tpa"; }
  std::string Describe() const override;
  void Emit(ValueId in, ValueId residual,
            ProgramBuilder& program) const override;
  absl::Status CheckGpu(absl::string_view where) const override;
  bool TakesFloatPages() const override { return false; }

 private:
  const TpaDefinition definition_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_TPA_TPA_LAYER_H_
