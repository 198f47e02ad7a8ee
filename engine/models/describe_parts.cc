#include "engine/models/describe_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace recurve {

const char* Name(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kSilu:
      return "silu";
    case Activation::kRelu:
      return "relu";
    case Activation::kSigmoid:
      return "sigmoid";
    case Activation::kElu:
      return "elu";
    case Activation::kOnePlusElu:
      return "1+elu";
    case Activation::kTwoPlusElu:
      return "2+elu";
    case Activation::kExp:
      return "exp";
    case Activation::kLeakyRelu:
      return "leaky_relu";
    case Activation::kReluSquared:
      return "relu2";
    case Activation::kGelu:
      return "gelu";
    case Activation::kSoftmax:
      return "softmax";
  }
  return "";
}

std::string DescribeHeads(int64_t num_heads, int64_t head_dim,
                          int64_t value_dim) {
  return absl::StrCat(
      num_heads, num_heads == 1 ? " head of " : " heads of ", head_dim,
      value_dim == head_dim ? "" : absl::StrCat(" (values ", value_dim, ")"));
}

std::string DescribePosition(const PositionConfig& position) {
  if (position.type == LrpeType::kNone) return ", no position";
  const bool part = std::find(position.theta.begin(), position.theta.end(),
                              0.0) != position.theta.end();
  return absl::StrCat(
      position.type == LrpeType::kRotate ? ", rotated" : ", cosine position",
      part ? " in part" : "", position.log_decay != 0 ? " with decay" : "");
}

std::string DescribeNorm(const std::optional<NormDefinition>& norm) {
  if (!norm) return ", no norm";
  return absl::StrCat(
      norm->kind == NormKind::kLayer ? ", layer norm" : ", RMS norm",
      norm->groups > 1 ? " of each head" : "");
}

}  // namespace recurve
