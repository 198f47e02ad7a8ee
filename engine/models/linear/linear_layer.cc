#include "engine/models/linear/linear_layer.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/models/describe_parts.h"
#include "engine/models/linear/linear_operation.h"
#include "kernels/linear_attn/scan/linear_scan_limits.h"
#include "kernels/linear_attn/step/linear_deferred_plan.h"

namespace recurve {
namespace {

// One of query, key and value: its place in the projected row and how it
// becomes a vector per head.
struct Input {
  const char* name;
  const FactorTensors* tensors;
  int64_t rank;  // 0: projected directly
  int64_t dim;   // features per head
  const std::optional<NormDefinition>* norm;
  int64_t column = 0;  // in the product
};

}  // namespace

// Σ x² is dim · mean(x²), so an L2 norm is an RMSNorm with eps / dim and the
// weight dim^-1/2.
NormDefinition L2NormOfHeads(int64_t num_heads, int64_t dim, double eps) {
  const double size = static_cast<double>(dim);
  NormDefinition norm;
  norm.groups = num_heads;
  norm.eps = eps / size;
  norm.weight.assign(num_heads * dim, static_cast<float>(1 / std::sqrt(size)));
  return norm;
}

std::string LinearLayer::Describe() const {
  const LinearConfig& c = definition_.config;
  std::string text = absl::StrCat(
      "linear: ", DescribeHeads(c.num_heads, c.head_dim, c.value_dim));
  if (c.kv_rank > 0)
    absl::StrAppend(&text, ", from factors of rank ", c.kv_rank);
  absl::StrAppend(&text, DescribePosition(c.position));
  if (c.q_activation != Activation::kNone)
    absl::StrAppend(&text, ", q ", Name(c.q_activation));
  if (c.k_activation != Activation::kNone)
    absl::StrAppend(&text, ", k ", Name(c.k_activation));
  if (c.v_activation != Activation::kNone)
    absl::StrAppend(&text, ", v ", Name(c.v_activation));
  const bool decays =
      std::any_of(c.log_decay.begin(), c.log_decay.end(),
                  [](double log_decay) { return log_decay != 0; });
  absl::StrAppend(&text, decays ? ", decay" : ", no decay",
                  DescribeNorm(definition_.norm));
  if (c.output_gate) {
    absl::StrAppend(&text, ", gate ", Name(*c.output_gate),
                    c.gate_after_norm ? " after it" : " before it");
  }
  if (!c.causal) text += ", prompts as a whole";
  return text;
}

void LinearLayer::Emit(ValueId in, ValueId residual,
                       ProgramBuilder& program) const {
  const LinearConfig& c = definition_.config;
  const LinearTensors& t = definition_.tensors;
  Input inputs[] = {{"q", &t.q, c.q_rank, c.head_dim, &c.q_norm},
                    {"k", &t.k, c.kv_rank, c.head_dim, &c.k_norm},
                    {"v", &t.v, c.kv_rank, c.value_dim, &c.v_norm}};
  // q, k, v and, with a gate, its first factor are one product.
  std::vector<MatrixPart> parts;
  int64_t cols = 0;
  const auto add = [&](const MatrixPart& part) {
    parts.push_back(part);
    cols += part.rows();
  };
  for (Input& input : inputs) {
    input.column = cols;
    if (input.rank > 0) add(input.tensors->a);
    add(input.tensors->b);
  }
  const int64_t gate_column = cols;
  if (c.output_gate) add(t.gate_in);
  const ValueId projected = program.AddValue("inputs", cols);
  const int64_t gate_rank = cols - gate_column;
  program.Add(
      ProjectOp{{in}, program.AddMatrix(std::move(parts)), {projected}, false});

  // The vectors of all heads, [T, H·dim].
  Slice vectors[3];
  for (int i = 0; i < 3; ++i) {
    const Input& input = inputs[i];
    const int64_t width = c.num_heads * input.dim;
    vectors[i] = {projected, input.column, width};
    if (input.rank > 0) {
      const int64_t a_cols = input.rank * c.num_heads;
      vectors[i] = {program.AddValue(input.name, width)};
      program.Add(
          ExpandOp{{projected, input.column, a_cols},
                   {projected, input.column + a_cols, input.rank * input.dim},
                   input.rank,
                   c.num_heads,
                   vectors[i]});
    }
    if (*input.norm) {
      program.Add(
          NormOp{vectors[i], EmitNorm(**input.norm, program), vectors[i]});
    }
  }

  const int64_t value_cols = c.num_heads * c.value_dim;
  const int64_t key_dim = LrpeOutputDim(c.position.type, c.head_dim);
  const ValueId mixed = program.AddValue("mixed", value_cols);
  // For q, k and v as 16-bit factors, and later for the normalised rows.
  const ValueId workspace = program.AddValue(
      "workspace",
      std::max((2 * c.num_heads * key_dim + value_cols + 1) / 2, value_cols));
  // The gate first: it takes a GPU so little work that it can read states
  // meanwhile.
  Slice gate = {projected, gate_column, gate_rank};
  if (c.output_gate && !t.gate_out.tensor.shape.empty()) {
    const Slice inner = gate;
    gate = {program.AddValue("gate", value_cols)};
    program.Add(ProjectOp{inner, program.AddMatrix({t.gate_out}), gate, false});
  }

  LinearOperation::Params params;
  params.num_heads = c.num_heads;
  params.head_dim = c.head_dim;
  params.value_dim = c.value_dim;
  params.q_activation = c.q_activation;
  params.k_activation = c.k_activation;
  params.v_activation = c.v_activation;
  params.causal = c.causal;
  params.position_type = c.position.type;
  params.position = program.AddPosition(c.position);
  std::vector<float> decay;
  for (const double log_decay : c.log_decay)
    decay.push_back(static_cast<float>(std::exp(log_decay)));
  params.decay = program.AddVector(std::move(decay));
  params.state = program.AddState({c.num_heads * key_dim * c.value_dim});
  if (c.causal && LinearDeferredDoes(key_dim, c.value_dim)) {
    params.ring = program.AddState(
        {LinearRingElements(c.num_heads, key_dim, c.value_dim), true});
  }
  params.q = vectors[0];
  params.k = vectors[1];
  params.v = vectors[2];
  params.out = {mixed};
  params.workspace = {workspace};
  program.Add(SequenceOp{std::make_shared<LinearOperation>(params)});
  if (!c.causal) program.UseWholePrompts();

  ValueId normed = mixed;
  if (definition_.norm) {
    normed = program.AddOver("normed", value_cols, workspace);
    const NormWeights norm = EmitNorm(*definition_.norm, program);
    if (c.output_gate) {
      program.Add(GatedNormOp{
          {mixed}, gate, *c.output_gate, c.gate_after_norm, norm, {normed}});
    } else {
      program.Add(NormOp{{mixed}, norm, {normed}});
    }
  }
  program.Add(
      ProjectOp{{normed}, program.AddMatrix({t.out}), {residual}, true});
}

absl::Status LinearLayer::CheckGpu(absl::string_view where) const {
  const int64_t key_dim = LrpeOutputDim(definition_.config.position.type,
                                        definition_.config.head_dim);
  if (key_dim > kLinearScanMaxKeyDim) {
    return NotOnGpu(where,
                    absl::StrCat("encoded head_dim is ", key_dim,
                                 "; expected at most ", kLinearScanMaxKeyDim));
  }
  if (definition_.config.value_dim > kLinearScanMaxValueDim) {
    return NotOnGpu(
        where, absl::StrCat("value_dim is ", definition_.config.value_dim,
                            "; expected at most ", kLinearScanMaxValueDim));
  }
  if (definition_.config.output_gate &&
      *definition_.config.output_gate == Activation::kSoftmax) {
    return NotOnGpu(where, "a softmax output gate; expected a pointwise one");
  }
  return absl::OkStatus();
}

}  // namespace recurve
