#include "tools/recurve_model/describe_mixer.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"

namespace recurve {
namespace {

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

std::string Heads(int64_t num_heads, int64_t head_dim, int64_t value_dim) {
  return absl::StrCat(
      num_heads, num_heads == 1 ? " head of " : " heads of ", head_dim,
      value_dim == head_dim ? "" : absl::StrCat(" (values ", value_dim, ")"));
}

std::string Position(const PositionConfig& position) {
  if (position.type == LrpeType::kNone) return ", no position";
  const bool part = std::find(position.theta.begin(), position.theta.end(),
                              0.0) != position.theta.end();
  return absl::StrCat(
      position.type == LrpeType::kRotate ? ", rotated" : ", cosine position",
      part ? " in part" : "", position.log_decay != 0 ? " with decay" : "");
}

std::string Norm(const std::optional<NormDefinition>& norm) {
  if (!norm) return ", no norm";
  return absl::StrCat(
      norm->kind == NormKind::kLayer ? ", layer norm" : ", RMS norm",
      norm->groups > 1 ? " of each head" : "");
}

std::string Describe(const TpaLayer& layer) {
  const TpaConfig& config = layer.config;
  const TpaShape& s = config.shape;
  std::string text = absl::StrCat(
      "tpa: ", Heads(s.num_heads, s.head_dim, s.value_dim),
      s.q_rank == 0 ? ", whole queries"
                    : absl::StrCat(", query rank ", s.q_rank),
      ", key and value rank ", s.kv_rank, Position(config.position));
  if (config.factor_activation != Activation::kNone)
    absl::StrAppend(&text, ", factors ", Name(config.factor_activation));
  if (layer.norm) absl::StrAppend(&text, Norm(layer.norm));
  return text;
}

std::string Describe(const LinearLayer& layer) {
  const LinearConfig& c = layer.config;
  std::string text =
      absl::StrCat("linear: ", Heads(c.num_heads, c.head_dim, c.value_dim));
  if (c.kv_rank > 0)
    absl::StrAppend(&text, ", from factors of rank ", c.kv_rank);
  absl::StrAppend(&text, Position(c.position));
  if (c.q_activation != Activation::kNone)
    absl::StrAppend(&text, ", q ", Name(c.q_activation));
  if (c.k_activation != Activation::kNone)
    absl::StrAppend(&text, ", k ", Name(c.k_activation));
  if (c.v_activation != Activation::kNone)
    absl::StrAppend(&text, ", v ", Name(c.v_activation));
  const bool decays =
      std::any_of(c.log_decay.begin(), c.log_decay.end(),
                  [](double log_decay) { return log_decay != 0; });
  absl::StrAppend(&text, decays ? ", decay" : ", no decay", Norm(layer.norm));
  if (c.output_gate) {
    absl::StrAppend(&text, ", gate ", Name(*c.output_gate),
                    c.gate_after_norm ? " after it" : " before it");
  }
  if (!c.causal) text += ", prompts as a whole";
  return text;
}

}  // namespace

std::string DescribeMixer(const LayerDefinition& layer) {
  return std::visit([](const auto& mixer) { return Describe(mixer); },
                    layer.mixer);
}

}  // namespace recurve
