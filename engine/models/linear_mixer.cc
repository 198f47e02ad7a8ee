#include <algorithm>
#include <cmath>
#include <optional>

#include "base/status_macros.h"
#include "engine/models/mixer.h"

namespace recurve {
namespace {

// One of query, key and value: its place in the projected row and how it
// becomes a vector per head.
struct Input {
  int64_t rank = 0;    // 0: projected directly
  int64_t dim = 0;     // features per head
  int64_t column = 0;  // in the product
  std::optional<Backend::NormArgs> norm;
};

struct LinearWeights {
  StateId state;
  PositionId position;
  VectorId decay;
  Input q, k, v;
  MatrixId inputs;  // q, k, v and, with a gate, its first factor
  int64_t input_cols = 0;
  int64_t gate_column = 0;
  int64_t gate_rank = 0;  // 0 without a gate
  MatrixId gate_out;
  std::optional<Backend::NormArgs> norm;
  MatrixId out;
};

class LinearMixer : public TokenMixer {
 public:
  LinearMixer(const LinearConfig& config, const LinearWeights& weights,
              const Backend& backend)
      : config_(config), weights_(weights), backend_(backend) {}

  absl::string_view name() const override { return "linear"; }

  int64_t scratch_cols() const override {
    int64_t cols = backend_.PadColumns(weights_.input_cols);
    for (const Input* input : {&weights_.q, &weights_.k, &weights_.v}) {
      if (input->rank > 0)
        cols += backend_.PadColumns(config_.num_heads * input->dim);
    }
    return cols + backend_.PadColumns(workspace_cols()) +
           backend_.PadColumns(value_cols()) * (weights_.gate_rank > 0 ? 2 : 1);
  }

  void Forward(Backend& backend, Activations in, Activations scratch,
               Activations residual) const override {
    const Activations inputs = scratch.Columns(0, weights_.input_cols);
    int64_t column = backend.PadColumns(weights_.input_cols);
    const auto next = [&](int64_t cols) {
      const int64_t first = column;
      column += backend.PadColumns(cols);
      return scratch.Columns(first, cols);
    };
    backend.Project(in, weights_.inputs, inputs, /*add=*/false);

    Backend::LinearAttentionArgs args;
    args.state = weights_.state;
    args.position = weights_.position;
    args.decay = weights_.decay;
    args.config = &config_;
    const auto vectors = [&](const Input& input) {
      return HeadVectors(
          backend, input, inputs,
          input.rank > 0 ? next(config_.num_heads * input.dim) : Activations());
    };
    args.q = vectors(weights_.q);
    args.k = vectors(weights_.k);
    args.v = vectors(weights_.v);
    const Activations mixed = next(value_cols());
    args.out = mixed;
    const Activations workspace = next(workspace_cols());
    args.scratch = workspace;
    // The gate first: it takes a GPU so little work that it can read states
    // meanwhile.
    const bool gated = weights_.gate_rank > 0;
    const Activations gate = gated ? next(value_cols()) : Activations();
    if (gated) {
      backend.Project(inputs.Columns(weights_.gate_column, weights_.gate_rank),
                      weights_.gate_out, gate, /*add=*/false);
    }
    backend.LinearAttention(args);

    // If the product reads 16-bit inputs, the norm writes them.
    Activations normed = workspace.Columns(0, value_cols());
    normed.for_products = true;
    if (gated) {
      backend.GatedNorm({mixed, gate, *config_.output_gate,
                         config_.gate_after_norm, *weights_.norm, normed});
    } else if (weights_.norm) {
      backend.Norm(mixed, *weights_.norm, normed);
    } else {
      normed = mixed;
    }
    backend.Project(normed, weights_.out, residual, /*add=*/true);
  }

 private:
  int64_t value_cols() const { return config_.num_heads * config_.value_dim; }
  // For q, k and v as 16-bit factors, and later for the projected rows.
  int64_t workspace_cols() const {
    const int64_t dim = LrpeOutputDim(config_.position.type, config_.head_dim);
    return std::max((2 * config_.num_heads * dim + value_cols() + 1) / 2,
                    value_cols());
  }

  // The vectors of all heads, [T, H·dim]: in place, or in `expanded`.
  Activations HeadVectors(Backend& backend, const Input& input,
                          Activations inputs, Activations expanded) const {
    const int64_t heads = config_.num_heads;
    Activations result = expanded;
    if (input.rank == 0) {
      result = inputs.Columns(input.column, heads * input.dim);
    } else {
      backend.ExpandFactors({inputs.Columns(input.column, input.rank * heads),
                             inputs.Columns(input.column + input.rank * heads,
                                            input.rank * input.dim),
                             input.rank, heads, expanded});
    }
    if (input.norm) backend.Norm(result, *input.norm, result);
    return result;
  }

  const LinearConfig config_;
  const LinearWeights weights_;
  const Backend& backend_;
};

// Σ x² is dim · mean(x²), so an L2 norm is an RMSNorm with eps / dim and the
// weight dim^-1/2.
NormDefinition AsRmsNorm(double l2_eps, int64_t num_heads, int64_t dim) {
  const double size = static_cast<double>(dim);
  NormDefinition norm;
  norm.groups = num_heads;
  norm.eps = l2_eps / size;
  norm.weight.assign(num_heads * dim, static_cast<float>(1 / std::sqrt(size)));
  return norm;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenMixer>> MakeMixer(const LinearLayer& layer,
                                                      Backend& backend) {
  const LinearTensors& t = layer.tensors;
  const LinearConfig& config = layer.config;
  LinearWeights weights;
  std::vector<MatrixPart> parts;
  const auto add = [&](const MatrixPart& part) {
    parts.push_back(part);
    weights.input_cols += part.rows();
  };
  const auto add_input = [&](const FactorTensors& factors, int64_t rank,
                             int64_t dim,
                             const std::optional<LinearConfig::L2Norm>& norm,
                             Input* input) -> absl::Status {
    *input = {rank, dim, weights.input_cols, std::nullopt};
    if (rank > 0) add(factors.a);
    add(factors.b);
    if (norm) {
      RECURVE_ASSIGN_OR_RETURN(
          input->norm,
          LoadNorm(AsRmsNorm(norm->eps, config.num_heads, dim), backend));
    }
    return absl::OkStatus();
  };
  RECURVE_RETURN_IF_ERROR(add_input(t.q, config.q_rank, config.head_dim,
                                    config.q_norm, &weights.q));
  RECURVE_RETURN_IF_ERROR(add_input(t.k, config.kv_rank, config.head_dim,
                                    config.k_norm, &weights.k));
  RECURVE_RETURN_IF_ERROR(add_input(t.v, config.kv_rank, config.value_dim,
                                    config.v_norm, &weights.v));
  if (config.output_gate) {
    weights.gate_column = weights.input_cols;
    weights.gate_rank = t.gate_in.tensor.shape[0];
    add(t.gate_in);
    RECURVE_ASSIGN_OR_RETURN(weights.gate_out,
                             backend.LoadMatrix({t.gate_out}));
  }
  RECURVE_ASSIGN_OR_RETURN(weights.inputs, backend.LoadMatrix(parts));
  if (layer.norm) {
    RECURVE_ASSIGN_OR_RETURN(weights.norm, LoadNorm(*layer.norm, backend));
  }
  RECURVE_ASSIGN_OR_RETURN(weights.out, backend.LoadMatrix({t.out}));
  RECURVE_ASSIGN_OR_RETURN(weights.position,
                           backend.LoadPosition(config.position));
  std::vector<float> decay;
  for (double log_decay : config.log_decay)
    decay.push_back(static_cast<float>(std::exp(log_decay)));
  RECURVE_ASSIGN_OR_RETURN(weights.decay, backend.LoadVector(decay));
  weights.state = backend.AddState(
      config.num_heads, LrpeOutputDim(config.position.type, config.head_dim),
      config.value_dim, config.causal);
  return std::make_unique<LinearMixer>(config, weights, backend);
}

absl::StatusOr<Backend::NormArgs> LoadNorm(const NormDefinition& norm,
                                           Backend& backend) {
  Backend::NormArgs args;
  args.kind = norm.kind;
  args.groups = norm.groups;
  args.eps = norm.eps;
  if (!norm.weight.empty()) {
    RECURVE_ASSIGN_OR_RETURN(args.weight, backend.LoadVector(norm.weight));
  }
  if (!norm.bias.empty()) {
    RECURVE_ASSIGN_OR_RETURN(args.bias, backend.LoadVector(norm.bias));
  }
  return args;
}

}  // namespace recurve
