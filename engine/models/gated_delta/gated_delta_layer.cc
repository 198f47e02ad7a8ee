#include "engine/models/gated_delta/gated_delta_layer.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/models/describe_parts.h"
#include "engine/models/gated_delta/gated_delta_operation.h"
#include "engine/models/norm_definition.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_plan.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_plan.h"

namespace recurve {
namespace {

// q̂ and k̂: x / sqrt(Σ x² + this). No published config has another.
constexpr float kUnitEps = 1e-6f;

}  // namespace

std::string GatedDeltaLayer::Describe() const {
  const GatedDeltaConfig& c = definition_.config;
  return absl::StrCat(
      "gated delta: ", DescribeHeads(c.value_heads, c.head_dim, c.value_dim),
      c.key_heads == c.value_heads
          ? ""
          : absl::StrCat(", ", c.key_heads, " key heads"),
      ", convolution of ", c.conv_width,
      c.beta_scale == 1 ? "" : ", negative eigenvalues", ", gate ",
      Name(c.gate), " after the norm of each head");
}

void GatedDeltaLayer::Emit(ValueId in, ValueId residual,
                           ProgramBuilder& program) const {
  const GatedDeltaConfig& c = padded_.config;
  const GatedDeltaTensors& t = padded_.tensors;
  const int64_t channels = c.channels();
  const int64_t values = c.value_heads * c.value_dim;
  // b and a last: they may have any number of columns, and what is before them
  // is aligned.
  std::vector<MatrixPart> parts = t.qkv;
  for (const MatrixPart* part : {&t.z, &t.b, &t.a}) parts.push_back(*part);
  const ValueId inputs =
      program.AddValue("inputs", channels + values + 2 * c.value_heads);
  const ValueId convolved = program.AddValue("convolved", channels);
  const ValueId mixed = program.AddValue("mixed", values);
  program.Add(
      ProjectOp{{in}, program.AddMatrix(std::move(parts)), {inputs}, false});

  GatedDeltaOperation::Params params;
  params.key_heads = c.key_heads;
  params.value_heads = c.value_heads;
  params.head_dim = c.head_dim;
  params.value_dim = c.value_dim;
  params.conv_width = c.conv_width;
  params.decay = c.decay;
  params.beta_scale = c.beta_scale;
  params.unit_eps = kUnitEps;
  params.scale = static_cast<float>(c.scale);
  params.gate = c.gate;
  params.norm_eps = static_cast<float>(c.norm_eps);
  params.conv_weight = program.AddVector(t.conv_weight);
  params.a_log = program.AddVector(t.a_log);
  params.dt_bias = program.AddVector(t.dt_bias);
  std::vector<float> weight;
  for (int64_t head = 0; head < c.value_heads; ++head) {
    weight.insert(weight.end(), t.norm_weight.begin(), t.norm_weight.end());
  }
  params.norm_weight = program.AddVector(std::move(weight));
  params.state = program.AddState({c.value_heads * c.head_dim * c.value_dim});
  params.conv_state = program.AddState({(c.conv_width - 1) * channels});
  params.qkv = {inputs, 0, channels};
  params.z = {inputs, channels, values};
  params.b = {inputs, channels + values, c.value_heads};
  params.a = {inputs, channels + values + c.value_heads, c.value_heads};
  params.convolved = {convolved};
  params.out = {mixed};
  program.Add(SequenceOp{std::make_shared<GatedDeltaOperation>(params)});
  program.Add(ProjectOp{{mixed}, program.AddMatrix({t.out}), {residual}, true});
}

absl::Status GatedDeltaLayer::CheckGpu(absl::string_view where) const {
  const GatedDeltaConfig& c = padded_.config;
  const int blocks = DeltaStepCluster(c.key_heads, c.value_heads, c.value_dim,
                                      /*convolves=*/true, /*norms=*/true);
  if (DeltaStepDoes(c.key_heads, c.value_heads, c.head_dim, c.value_dim) &&
      DeltaPrefillDoes(c.key_heads, c.value_heads, c.head_dim, c.value_dim) &&
      blocks <= kDeltaStepMaxCluster) {
    return absl::OkStatus();
  }
  return NotOnGpu(
      where,
      absl::StrCat("a gated delta rule with ", c.key_heads, " key heads of ",
                   definition_.config.head_dim, " and ", c.value_heads,
                   " value heads of ", definition_.config.value_dim,
                   " features; expected at most ", kDeltaPrefillDim, " and ",
                   kDeltaPrefillMaxValue, " features, and at most ",
                   kDeltaStepMaxCluster * kDeltaStepColumns,
                   " of values for each key head"));
}

}  // namespace recurve
