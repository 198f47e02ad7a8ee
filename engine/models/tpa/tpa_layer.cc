#include "engine/models/tpa/tpa_layer.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/describe_parts.h"
#include "engine/models/tpa/tpa_operation.h"
#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {

std::string TpaLayer::Describe() const {
  const TpaShape& s = definition_.config.shape;
  std::string text =
      absl::StrCat("tpa: ", DescribeHeads(s.num_heads, s.head_dim, s.value_dim),
                   s.q_rank == 0 ? ", whole queries"
                                 : absl::StrCat(", query rank ", s.q_rank),
                   ", key and value rank ", s.kv_rank,
                   DescribePosition(definition_.config.position));
  if (definition_.config.factor_activation != Activation::kNone)
    absl::StrAppend(&text, ", factors ",
                    Name(definition_.config.factor_activation));
  if (definition_.norm) absl::StrAppend(&text, DescribeNorm(definition_.norm));
  return text;
}

void TpaLayer::Emit(ValueId in, ValueId residual,
                    ProgramBuilder& program) const {
  const TpaShape& s = definition_.config.shape;
  const TpaTensors& t = definition_.tensors;
  // All factors are one product, adjacent in a row.
  std::vector<MatrixPart> parts;
  if (s.q_rank > 0) parts.push_back(t.q.a);
  for (const MatrixPart* part : {&t.q.b, &t.k.a, &t.k.b, &t.v.a, &t.v.b})
    parts.push_back(*part);
  int64_t cols = 0;
  for (const MatrixPart& part : parts) cols += part.rows();
  const ValueId factors = program.AddValue("factors", cols);
  const ValueId mixed = program.AddValue("mixed", s.num_heads * s.value_dim);
  program.Add(
      ProjectOp{{in}, program.AddMatrix(std::move(parts)), {factors}, false});

  TpaOperation::Params params;
  params.shape = s;
  params.factor_activation = definition_.config.factor_activation;
  params.position = program.AddPosition(definition_.config.position);
  params.pages =
      program.AddPages({TpaPageLayout(s, TpaPageOrder::kPlain).page_elements,
                        TpaPageLayout(s, TpaPageOrder::kOctets).page_elements});
  int64_t column = 0;
  const auto next = [&](int64_t count) {
    column += count;
    return Slice{factors, column - count, count};
  };
  params.a_q = next(s.q_rank * s.num_heads);
  params.b_q = next((s.q_rank > 0 ? s.q_rank : s.num_heads) * s.head_dim);
  params.a_k = next(s.kv_rank * s.num_heads);
  params.b_k = next(s.kv_rank * s.head_dim);
  params.a_v = next(s.kv_rank * s.num_heads);
  params.b_v = next(s.kv_rank * s.value_dim);
  params.out = {mixed};
  program.Add(SequenceOp{std::make_shared<TpaOperation>(params)});
  if (definition_.norm) {
    program.Add(NormOp{{mixed}, EmitNorm(*definition_.norm, program), {mixed}});
  }
  program.Add(ProjectOp{{mixed}, program.AddMatrix({t.out}), {residual}, true});
}

absl::Status TpaLayer::CheckGpu(absl::string_view where) const {
  const TpaShape& s = definition_.config.shape;
  const auto within = [&](absl::string_view field, int64_t value, int64_t low,
                          int64_t high, int64_t step) -> absl::Status {
    if (value >= low && value <= high && value % step == 0)
      return absl::OkStatus();
    return NotOnGpu(
        where,
        absl::StrCat(field, " is ", value, "; expected ", low, " to ", high,
                     step > 1 ? absl::StrCat(" in steps of ", step) : ""));
  };
  // TpaDecodeSupports, field by field.
  RECURVE_RETURN_IF_ERROR(within("num_heads", s.num_heads, 1, kTpaMaxHeads, 1));
  RECURVE_RETURN_IF_ERROR(
      within("head_dim", s.head_dim, kTpaDimStep, kTpaMaxDim, kTpaDimStep));
  RECURVE_RETURN_IF_ERROR(
      within("value_dim", s.value_dim, kTpaDimStep, kTpaMaxDim, kTpaDimStep));
  RECURVE_RETURN_IF_ERROR(within("q_rank", s.q_rank, 0, kTpaMaxQueryRank, 1));
  RECURVE_RETURN_IF_ERROR(within("kv_rank", s.kv_rank, 1, kTpaMaxRank, 1));
  if (definition_.config.factor_activation == Activation::kSoftmax) {
    return NotOnGpu(where,
                    "softmax over factors; expected a pointwise activation");
  }
  return absl::OkStatus();
}

}  // namespace recurve
