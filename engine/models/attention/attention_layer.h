#ifndef RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_LAYER_H_
#define RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_LAYER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/layer_part.h"
#include "engine/program/position.h"
#include "kernels/attention/attention_layout.h"

namespace recurve {

// Softmax attention; maths in kernels/attention/attention.h.
struct AttentionConfig {
  AttentionShape shape = {};
  double scale = 0;         // of scores
  PositionConfig position;  // kNone or kRotate
  // RMSNorm of queries and keys before the position.
  struct Norm {
    bool of_heads = false;    // else over all heads at once
    double eps = 0;           // added to the mean square
    std::vector<float> q, k;  // [D], or [H·D] and [G·D]
  };
  std::optional<Norm> norm;
};

struct AttentionTensors {
  // [H·D, C], or [H·D + H·E, C] with the gate's rows behind.
  MatrixPart q;
  MatrixPart k, v;  // [G·D, C], [G·E, C]
  // The output is multiplied by sigmoid of this: [H·E, C].
  bool gate_in_q = false;
  std::optional<MatrixPart> gate;
  MatrixPart out;  // [C, H·E]
};

// A layer's mixer.
struct AttentionDefinition {
  AttentionConfig config;
  AttentionTensors tensors;
};

// The same layer with heads that kernels take: features in multiples of 16,
// some of them zero.
AttentionDefinition PadAttention(AttentionDefinition definition);

class AttentionLayer : public LayerPart {
 public:
  explicit AttentionLayer(AttentionDefinition definition)
      : definition_(std::move(definition)),
        padded_(PadAttention(definition_)) {}

  const AttentionDefinition& definition() const { return definition_; }

  absl::string_view name() const override { return "attention"; }
  std::string Describe() const override;
  void Emit(ValueId in, ValueId residual,
            ProgramBuilder& program) const override;
  absl::Status CheckGpu(absl::string_view where) const override;

 private:
  bool gated() const {
    return definition_.tensors.gate_in_q || definition_.tensors.gate;
  }

  const AttentionDefinition definition_;
  const AttentionDefinition padded_;  // what is computed
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_LAYER_H_
