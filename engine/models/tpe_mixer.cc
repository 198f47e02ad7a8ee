#include "base/status_macros.h"
#include "engine/models/mixer.h"

namespace recurve {
namespace {

// A linear-attention layer whose keys are 1 and whose queries are the gains,
// with the embedding itself as values: the state is one vector per head.
class TpeMixer : public TokenMixer {
 public:
  struct Weights {
    StateId state;
    PositionId position;
    VectorId decay;
    VectorId gain;  // [H]
    VectorId ones;  // [H]
    Backend::NormArgs norm;
    MatrixId out;
  };

  TpeMixer(int64_t num_heads, int64_t value_dim, const Weights& weights,
           const Backend& backend)
      : weights_(weights), out_column_(backend.PadColumns(2 * num_heads)) {
    config_.num_heads = num_heads;
    config_.head_dim = 1;
    config_.value_dim = value_dim;
  }

  absl::string_view name() const override { return "tpe"; }

  int64_t scratch_cols() const override {
    return out_column_ + config_.num_heads * config_.value_dim;
  }

  void Forward(Backend& backend, Activations in, Activations scratch,
               Activations residual) const override {
    const int64_t heads = config_.num_heads;
    Backend::LinearAttentionArgs args;
    args.state = weights_.state;
    args.position = weights_.position;
    args.decay = weights_.decay;
    args.config = &config_;
    args.q = scratch.Columns(0, heads);
    args.k = scratch.Columns(heads, heads);
    args.v = in;
    args.out = scratch.Columns(out_column_, heads * config_.value_dim);
    backend.Fill(weights_.gain, args.q);
    backend.Fill(weights_.ones, args.k);
    backend.LinearAttention(args);
    backend.Norm(args.out, weights_.norm, args.out);
    backend.Project(args.out, weights_.out, residual, /*add=*/true);
  }

 private:
  LinearConfig config_;
  const Weights weights_;
  const int64_t out_column_;  // in the scratch columns
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenMixer>> MakeMixer(const TpeLayer& layer,
                                                      Backend& backend) {
  const int64_t value_dim = layer.out.tensor.shape[1] / layer.num_heads;
  TpeMixer::Weights weights;
  weights.state =
      backend.AddState(layer.num_heads, 1, value_dim, /*causal=*/true);
  RECURVE_ASSIGN_OR_RETURN(weights.position, backend.LoadPosition({}));
  RECURVE_ASSIGN_OR_RETURN(weights.decay, backend.LoadVector(layer.decay));
  RECURVE_ASSIGN_OR_RETURN(weights.gain, backend.LoadVector(layer.gain));
  RECURVE_ASSIGN_OR_RETURN(weights.ones, backend.LoadVector(std::vector<float>(
                                             layer.num_heads, 1.0f)));
  RECURVE_ASSIGN_OR_RETURN(weights.norm, LoadNorm(layer.norm, backend));
  RECURVE_ASSIGN_OR_RETURN(weights.out, backend.LoadMatrix({layer.out}));
  return std::make_unique<TpeMixer>(layer.num_heads, value_dim, weights,
                                    backend);
}

}  // namespace recurve
