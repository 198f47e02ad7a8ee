#include "engine/cuda/cuda_model_limits.h"

#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/linear_attn/scan/linear_scan_cuda.h"
#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {
namespace {

absl::Status Unsupported(size_t layer, absl::string_view field, int64_t value,
                         absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the GPU does not support layer ", layer, ": ", field, " is ", value,
      "; expected ", limit, " (--device cpu runs it)"));
}

absl::Status CheckMixer(size_t layer, const TpaLayer& mixer) {
  const TpaConfig& config = mixer.config;
  const TpaShape& s = config.shape;
  const auto within = [&](absl::string_view field, int64_t value, int64_t low,
                          int64_t high, int64_t step) -> absl::Status {
    if (value >= low && value <= high && value % step == 0)
      return absl::OkStatus();
    return Unsupported(
        layer, field, value,
        absl::StrCat(low, " to ", high,
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
  if (config.factor_activation == Activation::kSoftmax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the GPU does not support layer ", layer,
        ": softmax over factors; expected a pointwise activation (--device "
        "cpu runs it)"));
  }
  return absl::OkStatus();
}

absl::Status CheckMixer(size_t layer, const LinearLayer& mixer) {
  const LinearConfig& config = mixer.config;
  const int64_t key_dim = LrpeOutputDim(config.position.type, config.head_dim);
  if (key_dim > kLinearScanMaxKeyDim) {
    return Unsupported(layer, "encoded head_dim", key_dim,
                       absl::StrCat("at most ", kLinearScanMaxKeyDim));
  }
  if (config.value_dim > kLinearScanMaxValueDim) {
    return Unsupported(layer, "value_dim", config.value_dim,
                       absl::StrCat("at most ", kLinearScanMaxValueDim));
  }
  if (config.output_gate && *config.output_gate == Activation::kSoftmax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the GPU does not support layer ", layer,
        ": a softmax output gate; expected a pointwise one (--device cpu runs "
        "it)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCudaModel(const ModelDefinition& model) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(
        std::visit([&](const auto& mixer) { return CheckMixer(i, mixer); },
                   model.layers[i].mixer));
  }
  if (model.channel_activation == Activation::kSoftmax) {
    return absl::InvalidArgumentError(
        "the GPU does not support a softmax in the gated linear unit; expected "
        "a pointwise activation (--device cpu runs it)");
  }
  if (model.tpe &&
      model.hidden_size / model.tpe->num_heads > kLinearScanMaxValueDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("the GPU does not support the token position encoding: ",
                     model.hidden_size / model.tpe->num_heads,
                     " features a head; expected at most ",
                     kLinearScanMaxValueDim, " (--device cpu runs it)"));
  }
  return absl::OkStatus();
}

}  // namespace recurve
