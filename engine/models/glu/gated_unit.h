#ifndef RECURVE_ENGINE_MODELS_GLU_GATED_UNIT_H_
#define RECURVE_ENGINE_MODELS_GLU_GATED_UNIT_H_

#include <cstdint>
#include <string>
#include <utility>

#include "engine/models/layer_part.h"
#include "kernels/common/activation.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// The gated linear unit: residual += w3(act(w1 x) ⊙ (w2 x)).
class GatedUnit : public LayerPart {
 public:
  struct Tensors {
    MatrixPart w1, w2;  // [F, C]
    MatrixPart w3;      // [C, F]
  };
  GatedUnit(Activation activation, Tensors tensors)
      : activation_(activation), tensors_(std::move(tensors)) {}

  absl::string_view name() const override { return "glu"; }
  std::string Describe() const override;
  void Emit(ValueId in, ValueId residual,
            ProgramBuilder& program) const override;
  absl::Status CheckGpu(absl::string_view where) const override;

 private:
  const Activation activation_;
  const Tensors tensors_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_GLU_GATED_UNIT_H_
