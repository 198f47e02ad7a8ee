#include "base/status_macros.h"
#include "engine/models/mixer.h"

namespace recurve {
namespace {

class TpaMixer : public TokenMixer {
 public:
  TpaMixer(const TpaConfig& config, TpaCacheId cache, PositionId position,
           MatrixId factors, MatrixId out)
      : shape_(config.shape),
        cache_(cache),
        position_(position),
        factors_(factors),
        out_(out) {}

  absl::string_view name() const override { return "tpa"; }

  int64_t scratch_cols() const override {
    return factor_cols() + shape_.num_heads * shape_.value_dim;
  }

  void Forward(Backend& backend, Activations in, Activations scratch,
               Activations residual) const override {
    // All six factors come from one product; they lie side by side in a row.
    const Activations factors = scratch.Columns(0, factor_cols());
    const Activations mixed =
        scratch.Columns(factor_cols(), shape_.num_heads * shape_.value_dim);
    backend.Project(in, factors_, factors, /*add=*/false);

    Backend::TpaArgs args;
    args.cache = cache_;
    args.position = position_;
    int64_t column = 0;
    const auto next = [&](int64_t cols) {
      column += cols;
      return factors.Columns(column - cols, cols);
    };
    args.a_q = next(shape_.q_rank * shape_.num_heads);
    args.b_q = next(shape_.q_rank * shape_.head_dim);
    args.a_k = next(shape_.kv_rank * shape_.num_heads);
    args.b_k = next(shape_.kv_rank * shape_.head_dim);
    args.a_v = next(shape_.kv_rank * shape_.num_heads);
    args.b_v = next(shape_.kv_rank * shape_.value_dim);
    args.out = mixed;
    backend.Tpa(args);
    backend.Project(mixed, out_, residual, /*add=*/true);
  }

 private:
  int64_t factor_cols() const {
    return shape_.q_rank * (shape_.num_heads + shape_.head_dim) +
           shape_.kv_rank *
               (2 * shape_.num_heads + shape_.head_dim + shape_.value_dim);
  }

  const TpaShape shape_;
  const TpaCacheId cache_;
  const PositionId position_;
  const MatrixId factors_;
  const MatrixId out_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenMixer>> MakeTpaMixer(const TpaLayer& layer,
                                                         Backend& backend) {
  const TpaTensors& t = layer.tensors;
  const TensorView parts[] = {t.a_q, t.b_q, t.a_k, t.b_k, t.a_v, t.b_v};
  RECURVE_ASSIGN_OR_RETURN(MatrixId factors, backend.LoadMatrix(parts));
  RECURVE_ASSIGN_OR_RETURN(MatrixId out, backend.LoadMatrix({t.out}));
  RECURVE_ASSIGN_OR_RETURN(PositionId position,
                           backend.LoadPosition(layer.config.position));
  const TpaCacheId cache = backend.AddTpaCache(layer.config.shape);
  return std::make_unique<TpaMixer>(layer.config, cache, position, factors,
                                    out);
}

}  // namespace recurve
