#include "engine/models/registry.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/check_finite.h"
#include "engine/models/families.h"

namespace recurve {
namespace {

struct Family {
  const char* name;
  const char* recognised_by;
  bool has_variants;
  bool (*matches)(const Checkpoint&);
  absl::StatusOr<ModelDefinition> (*read)(const Checkpoint&,
                                          const std::string& variant);
};

constexpr Family kFamilies[] = {
    {"recurve", "model_type \"recurve\"", false, IsRecurve, ReadRecurve},
    {"t6", "tensors named transformer.h.N.attn.c_qkv.W_A_k.weight or W_B_k",
     true, IsT6, ReadT6},
    {"xmixers",
     "model_type \"llama_\", \"linear_transformer\", \"tnl\" or "
     "\"naive_hybrid\"",
     false, IsXmixers, ReadXmixers},
    {"qwen3_5", "model_type \"qwen3_5\" or \"qwen3_5_text\"", false, IsQwen35,
     ReadQwen35},
    {"olmo_hybrid", "model_type \"olmo_hybrid\"", false, IsOlmoHybrid,
     ReadOlmoHybrid},
    {"minicpm_sala", "model_type \"minicpm_sala\"", false, IsMiniCpmSala,
     ReadMiniCpmSala},
};

std::string SupportedFamilies() {
  std::string supported;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", family.name,
                    " (", family.recognised_by, ")");
  }
  return supported;
}

absl::StatusOr<const Family*> FindFamily(const Checkpoint& checkpoint,
                                         const std::string& wanted) {
  for (const Family& family : kFamilies) {
    if (wanted == "auto" ? family.matches(checkpoint) : wanted == family.name)
      return &family;
  }
  if (wanted != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--model-family is \"", wanted, "\"; supported: auto, ",
                     SupportedFamilies()));
  }
  const JsonObject& config = checkpoint.config();
  if (!config.Has("model_type")) {
    return config.Invalid(
        "model_type",
        absl::StrCat("is missing; supported families: ", SupportedFamilies()));
  }
  RECURVE_ASSIGN_OR_RETURN(const std::string model_type,
                           config.String("model_type"));
  return config.Invalid("model_type",
                        absl::StrCat("is \"", model_type,
                                     "\", which is no supported model family; "
                                     "supported: ",
                                     SupportedFamilies()));
}

}  // namespace

std::vector<std::string> FamilyChoices() {
  std::vector<std::string> names = {"auto"};
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

absl::StatusOr<ModelDefinition> ReadModel(const Checkpoint& checkpoint,
                                          const FamilyOptions& options) {
  RECURVE_ASSIGN_OR_RETURN(ModelDefinition model,
                           ReadModelShape(checkpoint, options));
  RECURVE_RETURN_IF_ERROR(CheckMatrices(checkpoint, model));
  return model;
}

absl::Status CheckMatrices(const Checkpoint& checkpoint,
                           const ModelDefinition& model) {
  for (const std::string& name : model.matrices) {
    RECURVE_ASSIGN_OR_RETURN(const TensorView matrix, checkpoint.Tensor(name));
    RECURVE_RETURN_IF_ERROR(CheckFinite(matrix, name, checkpoint.FileOf(name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelDefinition> ReadModelShape(const Checkpoint& checkpoint,
                                               const FamilyOptions& options) {
  const absl::StatusOr<const Family*> family =
      FindFamily(checkpoint, options.family);
  if (!family.ok()) return family.status();
  if (!options.variant.empty() && !(*family)->has_variants) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model-variant is \"", options.variant,
                     "\"; the family ", (*family)->name, " has no variants"));
  }
  return (*family)->read(checkpoint, options.variant);
}

}  // namespace recurve
