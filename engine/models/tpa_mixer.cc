#include <optional>

#include "base/status_macros.h"
#include "engine/models/mixer.h"

namespace recurve {
namespace {

struct TpaWeights {
  TpaCacheId cache;
  PositionId position;
  MatrixId factors;  // all six: one product
  std::optional<Backend::NormArgs> norm;
  MatrixId out;
};

class TpaMixer : public TokenMixer {
 public:
  TpaMixer(const TpaConfig& config, const TpaWeights& weights,
           const Backend& backend)
      : shape_(config.shape),
        factor_activation_(config.factor_activation),
        weights_(weights),
        out_column_(backend.PadColumns(factor_cols())) {}

  absl::string_view name() const override { return "tpa"; }

  int64_t scratch_cols() const override { return out_column_ + out_cols(); }

  void Forward(Backend& backend, Activations in, Activations scratch,
               Activations residual) const override {
    // The factors are adjacent in a row.
    const Activations factors = scratch.Columns(0, factor_cols());
    Activations mixed = scratch.Columns(out_column_, out_cols());
    mixed.for_products = !weights_.norm;
    backend.Project(in, weights_.factors, factors, /*add=*/false);

    Backend::TpaArgs args;
    args.cache = weights_.cache;
    args.position = weights_.position;
    args.factor_activation = factor_activation_;
    int64_t column = 0;
    const auto next = [&](int64_t cols) {
      column += cols;
      return factors.Columns(column - cols, cols);
    };
    args.a_q = next(shape_.q_rank * shape_.num_heads);
    args.b_q = next(query_cols());
    args.a_k = next(shape_.kv_rank * shape_.num_heads);
    args.b_k = next(shape_.kv_rank * shape_.head_dim);
    args.a_v = next(shape_.kv_rank * shape_.num_heads);
    args.b_v = next(shape_.kv_rank * shape_.value_dim);
    args.out = mixed;
    args.next = weights_.out;
    backend.Tpa(args);
    if (weights_.norm) backend.Norm(mixed, *weights_.norm, mixed);
    backend.Project(mixed, weights_.out, residual, /*add=*/true);
  }

 private:
  int64_t query_cols() const {  // of B_q, or of direct queries
    return (shape_.q_rank > 0 ? shape_.q_rank : shape_.num_heads) *
           shape_.head_dim;
  }
  int64_t factor_cols() const {
    return shape_.q_rank * shape_.num_heads + query_cols() +
           shape_.kv_rank *
               (2 * shape_.num_heads + shape_.head_dim + shape_.value_dim);
  }
  int64_t out_cols() const { return shape_.num_heads * shape_.value_dim; }

  const TpaShape shape_;
  const Activation factor_activation_;
  const TpaWeights weights_;
  const int64_t out_column_;  // attention's output in the scratch columns
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenMixer>> MakeMixer(const TpaLayer& layer,
                                                      Backend& backend) {
  const TpaTensors& t = layer.tensors;
  std::vector<MatrixPart> parts;
  if (layer.config.shape.q_rank > 0) parts.push_back(t.q.a);
  for (const MatrixPart* part : {&t.q.b, &t.k.a, &t.k.b, &t.v.a, &t.v.b})
    parts.push_back(*part);
  TpaWeights weights;
  RECURVE_ASSIGN_OR_RETURN(weights.factors, backend.LoadMatrix(parts));
  RECURVE_ASSIGN_OR_RETURN(weights.out, backend.LoadMatrix({t.out}));
  RECURVE_ASSIGN_OR_RETURN(weights.position,
                           backend.LoadPosition(layer.config.position));
  if (layer.norm) {
    RECURVE_ASSIGN_OR_RETURN(weights.norm, LoadNorm(*layer.norm, backend));
  }
  weights.cache = backend.AddTpaCache(layer.config.shape);
  return std::make_unique<TpaMixer>(layer.config, weights, backend);
}

}  // namespace recurve
