#include "engine/models/tpe/tpe_layer.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/models/describe_parts.h"
#include "engine/models/linear/linear_operation.h"
#include "kernels/linear_attn/scan/linear_scan_limits.h"

namespace recurve {

std::string TpeLayer::Describe() const {
  return absl::StrCat(
      "tpe: ", DescribeHeads(definition_.num_heads, value_dim(), value_dim()));
}

void TpeLayer::Emit(ValueId in, ValueId residual,
                    ProgramBuilder& program) const {
  const int64_t heads = definition_.num_heads;
  const ValueId keys = program.AddValue("q and k", 2 * heads);
  const ValueId mixed = program.AddValue("mixed", heads * value_dim());
  LinearOperation::Params params;
  params.num_heads = heads;
  params.head_dim = 1;
  params.value_dim = value_dim();
  params.position = program.AddPosition({});
  params.decay = program.AddVector(definition_.decay);
  params.state = program.AddState({heads * value_dim()});
  params.q = {keys, 0, heads};
  params.k = {keys, heads, heads};
  params.v = {in};
  params.out = {mixed};
  program.Add(FillOp{program.AddVector(definition_.gain), params.q});
  program.Add(
      FillOp{program.AddVector(std::vector<float>(heads, 1.0f)), params.k});
  program.Add(SequenceOp{std::make_shared<LinearOperation>(params)});
  program.Add(NormOp{{mixed}, EmitNorm(definition_.norm, program), {mixed}});
  program.Add(ProjectOp{
      {mixed}, program.AddMatrix({definition_.out}), {residual}, true});
}

absl::Status TpeLayer::CheckGpu(absl::string_view where) const {
  if (value_dim() <= kLinearScanMaxValueDim) return absl::OkStatus();
  return NotOnGpu(
      where, absl::StrCat(value_dim(), " features a head; expected at most ",
                          kLinearScanMaxValueDim));
}

}  // namespace recurve
