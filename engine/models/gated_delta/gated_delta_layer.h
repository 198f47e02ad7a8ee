#ifndef RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_LAYER_H_
#define RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_LAYER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/layer_part.h"
#include "kernels/common/activation.h"
#include "kernels/linear_attn/gated_delta/delta_gate.h"

namespace recurve {

// A gated delta rule; maths in kernels/linear_attn/gated_delta/gated_delta.h.
// In front of it a short convolution (kernels/short_conv/short_conv.h) of q, k
// and v, behind it a gated RMSNorm of each head.
struct GatedDeltaConfig {
  int64_t key_heads = 0;    // Hk
  int64_t value_heads = 0;  // Hv, a multiple of Hk
  int64_t head_dim = 0;     // D of q and k
  int64_t value_dim = 0;    // E of v
  int64_t conv_width = 0;   // W
  double scale = 0;         // of queries; D^−1/2 as a rule
  DeltaDecay decay = DeltaDecay::kSoftplus;
  float beta_scale = 1;  // 2 where negative eigenvalues are allowed
  double norm_eps = 0;
  Activation gate = Activation::kSilu;  // of z

  // Channels of the convolution.
  int64_t channels() const {
    return 2 * key_heads * head_dim + value_heads * value_dim;
  }
};

struct GatedDeltaTensors {
  // [2·Hk·D + Hv·E, C] together: q, k and v, in one tensor or three.
  std::vector<MatrixPart> qkv;
  MatrixPart z;                    // [Hv·E, C]
  MatrixPart b, a;                 // [Hv, C]
  std::vector<float> conv_weight;  // [channels, W]
  std::vector<float> a_log;        // [Hv]
  std::vector<float> dt_bias;      // [Hv]
  std::vector<float> norm_weight;  // [E]
  MatrixPart out;                  // [C, Hv·E]
};

// A layer's mixer.
struct GatedDeltaDefinition {
  GatedDeltaConfig config;
  GatedDeltaTensors tensors;
};

// The same layer with heads that kernels take: features in multiples of 8, some
// of them zero.
GatedDeltaDefinition PadGatedDelta(GatedDeltaDefinition definition);

class GatedDeltaLayer : public LayerPart {
 public:
  explicit GatedDeltaLayer(GatedDeltaDefinition definition)
      : definition_(std::move(definition)),
        padded_(PadGatedDelta(definition_)) {}

  const GatedDeltaDefinition& definition() const { return definition_; }

  absl::string_view name() const override { return "gated delta"; }
  std::string Describe() const override;
  void Emit(ValueId in, ValueId residual,
            ProgramBuilder& program) const override;
  absl::Status CheckGpu(absl::string_view where) const override;

 private:
  const GatedDeltaDefinition definition_;
  const GatedDeltaDefinition padded_;  // what is computed
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_LAYER_H_
