#include <cmath>
#include <optional>

#include "base/status_macros.h"
#include "engine/models/mixer.h"

namespace recurve {
namespace {

struct LinearWeights {
  StateId state;
  PositionId position;
  VectorId decay;
  MatrixId qkv_gate;  // q, k, v and, with a gate, its first factor: one product
  int64_t gate_rank;  // 0 without a gate
  MatrixId gate_out;
  VectorId norm;
  MatrixId out;
};

class LinearMixer : public TokenMixer {
 public:
  LinearMixer(const LinearConfig& config, const LinearWeights& weights,
              double norm_eps)
      : config_(config), weights_(weights), norm_eps_(norm_eps) {}

  absl::string_view name() const override { return "linear"; }

  int64_t scratch_cols() const override {
    return input_cols() + value_cols() * (weights_.gate_rank > 0 ? 2 : 1);
  }

  void Forward(Backend& backend, Activations in, Activations scratch,
               Activations residual) const override {
    const int64_t key_cols = config_.num_heads * config_.head_dim;
    const Activations projected = scratch.Columns(0, input_cols());
    const Activations mixed = scratch.Columns(input_cols(), value_cols());
    backend.Project(in, weights_.qkv_gate, projected, /*add=*/false);

    Backend::LinearAttentionArgs args;
    args.state = weights_.state;
    args.position = weights_.position;
    args.decay = weights_.decay;
    args.config = &config_;
    args.q = projected.Columns(0, key_cols);
    args.k = projected.Columns(key_cols, key_cols);
    args.v = projected.Columns(2 * key_cols, value_cols());
    args.out = mixed;
    backend.LinearAttention(args);

    if (weights_.gate_rank > 0) {
      const Activations gate_in =
          projected.Columns(2 * key_cols + value_cols(), weights_.gate_rank);
      const Activations gate =
          scratch.Columns(input_cols() + value_cols(), value_cols());
      backend.Project(gate_in, weights_.gate_out, gate, /*add=*/false);
      backend.GatedNorm({mixed, gate, *config_.output_gate,
                         config_.gate_after_norm, weights_.norm, norm_eps_,
                         mixed});
    } else {
      backend.RmsNorm(mixed, weights_.norm, norm_eps_, mixed);
    }
    backend.Project(mixed, weights_.out, residual, /*add=*/true);
  }

 private:
  int64_t value_cols() const { return config_.num_heads * config_.value_dim; }
  int64_t input_cols() const {
    return 2 * config_.num_heads * config_.head_dim + value_cols() +
           weights_.gate_rank;
  }

  const LinearConfig config_;
  const LinearWeights weights_;
  const double norm_eps_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenMixer>> MakeLinearMixer(
    const LinearLayer& layer, double norm_eps, Backend& backend) {
  const LinearTensors& t = layer.tensors;
  const LinearConfig& config = layer.config;
  LinearWeights weights;
  std::vector<TensorView> parts = {t.q, t.k, t.v};
  weights.gate_rank = 0;
  if (config.output_gate) {
    parts.push_back(t.gate_in);
    weights.gate_rank = t.gate_in.shape[0];
    RECURVE_ASSIGN_OR_RETURN(weights.gate_out,
                             backend.LoadMatrix({t.gate_out}));
  }
  RECURVE_ASSIGN_OR_RETURN(weights.qkv_gate, backend.LoadMatrix(parts));
  RECURVE_ASSIGN_OR_RETURN(weights.norm, backend.LoadVector(t.norm));
  RECURVE_ASSIGN_OR_RETURN(weights.out, backend.LoadMatrix({t.out}));
  RECURVE_ASSIGN_OR_RETURN(weights.position,
                           backend.LoadPosition(config.position));
  std::vector<float> decay;
  for (double log_decay : config.log_decay)
    decay.push_back(static_cast<float>(std::exp(log_decay)));
  RECURVE_ASSIGN_OR_RETURN(weights.decay, backend.LoadVector(decay));
  weights.state = backend.AddState(
      config.num_heads, LrpeOutputDim(config.position.type, config.head_dim),
      config.value_dim);
  return std::make_unique<LinearMixer>(config, weights, norm_eps);
}

}  // namespace recurve
