#include "engine/models/attention/attention_layer.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/models/attention/attention_operation.h"
#include "engine/models/describe_parts.h"
#include "engine/models/norm_definition.h"
#include "kernels/attention/decode/attention_plan.h"

namespace recurve {

std::string AttentionLayer::Describe() const {
  const AttentionConfig& c = definition_.config;
  const AttentionShape& s = c.shape;
  std::string text = absl::StrCat(
      "attention: ", DescribeHeads(s.num_heads, s.head_dim, s.value_dim), ", ",
      s.num_kv_heads, s.num_kv_heads == 1 ? " key head" : " key heads",
      DescribePosition(c.position));
  if (c.norm) {
    absl::StrAppend(
        &text, ", RMS norm of ",
        c.norm->of_heads ? "each query and key" : "queries and keys");
  }
  if (gated()) text += ", gate sigmoid";
  return text;
}

void AttentionLayer::Emit(ValueId in, ValueId residual,
                          ProgramBuilder& program) const {
  const AttentionConfig& c = padded_.config;
  const AttentionShape& s = c.shape;
  const AttentionTensors& t = padded_.tensors;
  const int64_t values = s.num_heads * s.value_dim;
  // One product; the gate follows the queries.
  std::vector<MatrixPart> parts = {t.q};
  if (t.gate) parts.push_back(*t.gate);
  parts.push_back(t.k);
  parts.push_back(t.v);
  int64_t cols = 0;
  for (const MatrixPart& part : parts) cols += part.rows();
  const ValueId inputs = program.AddValue("inputs", cols);
  const ValueId mixed = program.AddValue("mixed", values);
  program.Add(
      ProjectOp{{in}, program.AddMatrix(std::move(parts)), {inputs}, false});

  AttentionOperation::Params params;
  params.shape = s;
  params.scale = static_cast<float>(c.scale);
  params.position = program.AddPosition(c.position);
  params.pages = program.AddPages(
      {AttentionPageLayout(s, AttentionPageOrder::kPlain).page_elements,
       AttentionPageLayout(s, AttentionPageOrder::kOctets).page_elements});
  int64_t column = 0;
  const auto next = [&](int64_t count) {
    column += count;
    return Slice{inputs, column - count, count};
  };
  params.q = next(s.num_heads * s.head_dim);
  if (gated()) params.gate = next(values);
  params.k = next(s.num_kv_heads * s.head_dim);
  params.v = next(s.num_kv_heads * s.value_dim);
  params.out = {mixed};
  if (c.norm && c.norm->of_heads) {
    params.norm_eps = static_cast<float>(c.norm->eps);
    params.q_norm = program.AddVector(c.norm->q);
    params.k_norm = program.AddVector(c.norm->k);
  } else if (c.norm) {
    for (const auto& [slice, weight] :
         {std::pair(params.q, &c.norm->q), std::pair(params.k, &c.norm->k)}) {
      NormDefinition norm;
      norm.eps = c.norm->eps;
      norm.weight = *weight;
      program.Add(NormOp{slice, EmitNorm(norm, program), slice});
    }
  }
  program.Add(SequenceOp{std::make_shared<AttentionOperation>(params)});
  program.Add(ProjectOp{{mixed}, program.AddMatrix({t.out}), {residual}, true});
}

absl::Status AttentionLayer::CheckGpu(absl::string_view where) const {
  if (AttentionSupports(padded_.config.shape)) return absl::OkStatus();
  const AttentionShape& s = definition_.config.shape;
  return NotOnGpu(
      where,
      absl::StrCat("attention with ", s.num_heads, " query heads, ",
                   s.num_kv_heads, " key heads, ", s.head_dim, " and ",
                   s.value_dim, " features; expected at most ",
                   kAttentionMaxHeads, " query heads, ", kAttentionMaxGroup,
                   " for each key head, and ", kAttentionMaxDim, " features"));
}

}  // namespace recurve
