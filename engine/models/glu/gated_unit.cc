#include "engine/models/glu/gated_unit.h"

#include "absl/strings/str_cat.h"
#include "engine/models/describe_parts.h"

namespace recurve {

std::string GatedUnit::Describe() const {
  return absl::StrCat("glu: inner ", tensors_.w1.rows(), ", ",
                      Name(activation_));
}

void GatedUnit::Emit(ValueId in, ValueId residual,
                     ProgramBuilder& program) const {
  // Each part of the unit's inputs is followed by zeros where the device wants
  // them; so are its outputs, of which w3 reads the others.
  const int64_t inner = tensors_.w1.rows();
  const ValueId gates =
      program.AddValue("gates", 2 * inner, /*pieces=*/2, /*padded=*/true);
  const ValueId gated =
      program.AddValue("gated", inner, /*pieces=*/1, /*padded=*/true);
  program.Add(
      ProjectOp{{in},
                program.AddMatrix({tensors_.w1, tensors_.w2}, /*padded=*/true),
                {gates},
                false});
  program.Add(GluOp{{gates}, activation_, {gated}});
  program.Add(ProjectOp{
      {gated, 0, inner}, program.AddMatrix({tensors_.w3}), {residual}, true});
}

absl::Status GatedUnit::CheckGpu(absl::string_view where) const {
  if (activation_ != Activation::kSoftmax) return absl::OkStatus();
  return NotOnGpu(where,
                  "a softmax in the gated linear unit; expected a pointwise "
                  "activation");
}

}  // namespace recurve
