#include "engine/models/family_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/check_finite.h"
#include "engine/models/glu/gated_unit.h"

namespace recurve {

absl::StatusOr<TensorView> TensorReader::Read(
    const std::string& name, const std::vector<int64_t>& shape) {
  absl::StatusOr<TensorView> found = checkpoint_.Tensor(name, shape);
  if (absl::IsNotFound(found.status())) {
    return absl::InvalidArgumentError(found.status().message());
  }
  RECURVE_ASSIGN_OR_RETURN(TensorView view, std::move(found));
  const bool matrix = view.shape.size() > 1;
  if (!matrix) {
    RECURVE_RETURN_IF_ERROR(CheckFinite(view, name, checkpoint_.FileOf(name)));
  }
  if (used_.insert(name).second) {
    parameters_ += view.num_elements();
    tensors_.push_back(name);
    if (matrix) matrices_.push_back(name);
  }
  return view;
}

absl::StatusOr<TensorView> TensorReader::ReadWithAnyRows(
    const std::string& name, int64_t cols) {
  const absl::StatusOr<TensorView> view = checkpoint_.Tensor(name);
  const int64_t rows = view.ok() && view->shape.size() == 2
                           ? std::max<int64_t>(view->shape[0], 1)
                           : 1;
  return Read(name, {rows, cols});
}

absl::StatusOr<std::vector<float>> TensorReader::ReadVector(
    const std::string& name, int64_t size) {
  return ReadValues(name, {size});
}

absl::StatusOr<std::vector<float>> TensorReader::ReadValues(
    const std::string& name, const std::vector<int64_t>& shape) {
  RECURVE_ASSIGN_OR_RETURN(const TensorView view, Read(name, shape));
  std::vector<float> values(view.num_elements());
  for (int64_t i = 0; i < view.num_elements(); ++i) values[i] = view.Element(i);
  return values;
}

absl::Status TensorReader::Finish(ModelDefinition& model) const {
  RECURVE_RETURN_IF_ERROR(checkpoint_.CheckAllUsed(used_));
  model.tensors = tensors_;
  model.matrices = matrices_;
  model.parameters = parameters_;
  return absl::OkStatus();
}

namespace {

// Adds a remark for each end-of-sequence token that config.json names and
// generation_config.json, which takes precedence, does not: usually an
// oversight.
void CompareEnds(const JsonObject& config, const JsonObject& counts,
                 ModelDefinition& model) {
  const absl::StatusOr<std::vector<int64_t>> ids =
      config.IntList("eos_token_id", 0, model.vocab_size - 1);
  if (!ids.ok()) {  // the value is not used
    model.remarks.emplace_back(ids.status().message());
    return;
  }
  for (const int64_t id : *ids) {
    if (std::find(model.eos_token_ids.begin(), model.eos_token_ids.end(), id) !=
        model.eos_token_ids.end()) {
      continue;
    }
    model.remarks.push_back(absl::StrCat(
        config.file(), ": eos_token_id has ", id, ", which is not in that of ",
        counts.file(), ": generations do not end at it"));
  }
}

}  // namespace

absl::Status ReadSpecialTokens(const Checkpoint& checkpoint,
                               const JsonObject& config,
                               ModelDefinition& model) {
  if (config.Has("bos_token_id")) {
    RECURVE_ASSIGN_OR_RETURN(
        const int64_t bos, config.Int("bos_token_id", 0, model.vocab_size - 1));
    model.bos_token_id = static_cast<int32_t>(bos);
  }
  const JsonObject* source = nullptr;
  if (checkpoint.generation_config() &&
      checkpoint.generation_config()->Has("eos_token_id")) {
    source = &*checkpoint.generation_config();
  } else if (config.Has("eos_token_id")) {
    source = &config;
  }
  if (source != nullptr) {
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<int64_t> ids,
        source->IntList("eos_token_id", 0, model.vocab_size - 1));
    model.eos_token_ids.assign(ids.begin(), ids.end());
    model.eos_file = source->file();
    if (source != &config && config.Has("eos_token_id")) {
      CompareEnds(config, *source, model);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Activation> ReadActivation(
    const JsonObject& object, const std::string& key,
    const ActivationNames& choices,
    const std::optional<std::string>& default_value) {
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const auto& choice : choices) names.emplace_back(choice.first);
  RECURVE_ASSIGN_OR_RETURN(const std::string chosen,
                           object.StringOneOf(key, names, default_value));
  for (const auto& [name, activation] : choices) {
    if (chosen == name) return activation;
  }
  return absl::InternalError("activation choices and names disagree");
}

absl::StatusOr<std::string> ReadTie(const JsonObject& config) {
  const std::string key = "tie_word_embeddings";
  RECURVE_ASSIGN_OR_RETURN(const bool tied, config.BoolOr(key, false));
  return tied ? absl::StrCat(key, " in ", config.file(), " is true") : "";
}

absl::Status ReadHead(const Checkpoint& checkpoint,
                      const std::string& embedding, const std::string& head,
                      const std::string& tied, TensorReader& tensors,
                      ModelDefinition& model) {
  const TensorView& table = model.embedding;
  if (tied.empty()) {
    RECURVE_ASSIGN_OR_RETURN(model.head, tensors.Read(head, table.shape));
    return absl::OkStatus();
  }
  model.head = table;
  if (!checkpoint.Has(head)) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const TensorView copy,
                           checkpoint.Tensor(head, table.shape));
  if (copy.dtype != table.dtype ||
      std::memcmp(copy.data, table.data,
                  copy.num_elements() * SizeOf(copy.dtype)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(checkpoint.FileOf(head),
                                                   ": ", head, " differs from ",
                                                   embedding, "; ", tied));
  }
  tensors.Ignore(head);
  return absl::OkStatus();
}

NormDefinition NormOfHeads(int64_t num_heads, double eps,
                           const std::vector<float>& weight) {
  NormDefinition norm;
  norm.groups = num_heads;
  norm.eps = eps;
  for (int64_t h = 0; h < num_heads; ++h) {
    norm.weight.insert(norm.weight.end(), weight.begin(), weight.end());
  }
  return norm;
}

absl::Status RequireBool(const JsonObject& object, const std::string& key,
                         bool value) {
  RECURVE_ASSIGN_OR_RETURN(const bool found, object.BoolOr(key, value));
  if (found != value) {
    return object.Invalid(
        key, absl::StrCat("is ", found ? "true" : "false", "; only ",
                          value ? "true" : "false", " is supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadGatedUnit(
    const GatedUnitNames& names, Activation activation, int64_t inner,
    int64_t hidden, TensorReader& tensors) {
  GatedUnit::Tensors t;
  RECURVE_ASSIGN_OR_RETURN(t.w1, tensors.Read(names.w1, {inner, hidden}));
  RECURVE_ASSIGN_OR_RETURN(t.w2, tensors.Read(names.w2, {inner, hidden}));
  RECURVE_ASSIGN_OR_RETURN(t.w3, tensors.Read(names.w3, {hidden, inner}));
  return std::make_shared<GatedUnit>(activation, std::move(t));
}

}  // namespace recurve
