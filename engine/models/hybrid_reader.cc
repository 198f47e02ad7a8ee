#include "engine/models/hybrid_reader.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "kernels/short_conv/short_conv.h"

namespace recurve {
namespace {

// A key with one of these words in its name is part of the function.
const std::set<std::string>& FunctionWords() {
  static const auto* const words = new std::set<std::string>{
      "act",       "activation",  "alibi",   "bias",       "cap",
      "clip",      "compression", "conv",    "decay",      "expert",
      "experts",   "factor",      "gate",    "gating",     "kernel",
      "layernorm", "lora",        "moe",     "multiplier", "nope",
      "norm",      "mlp",         "qk",      "qkv",        "quantization",
      "rank",      "residual",    "rope",    "rotary",     "router",
      "scale",     "scaling",     "sliding", "softcap",    "softcapping",
      "sparse",    "temperature", "v",       "window"};
  return *words;
}

bool IsFunction(const std::string& key) {
  bool function = false;
  for (const auto word : absl::StrSplit(key, '_')) {
    if (word == "loss") return false;  // of training
    function = function || FunctionWords().contains(std::string(word));
  }
  return function;
}

// False, zero, or empty.
bool IsOff(const JsonObject& config, const std::string& key) {
  if (const auto value = config.Bool(key); value.ok()) return !*value;
  if (const auto number = config.Double(key); number.ok()) return *number == 0;
  if (const auto list = config.StringList(key); list.ok()) return list->empty();
  const auto object = config.Object(key);
  return object.ok() && object->keys().empty();
}

}  // namespace

absl::StatusOr<HybridConfig> ReadHybridConfig(const JsonObject& config,
                                              ModelDefinition& model) {
  HybridConfig read;
  RECURVE_ASSIGN_OR_RETURN(model.vocab_size,
                           config.Int("vocab_size", 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(model.hidden_size,
                           config.Int("hidden_size", 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(model.intermediate_size,
                           config.Int("intermediate_size", 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(
      model.max_position_embeddings,
      config.Int("max_position_embeddings", 1, int64_t{1} << 31));
  RECURVE_ASSIGN_OR_RETURN(read.num_layers,
                           config.Int("num_hidden_layers", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(read.num_heads,
                           config.Int("num_attention_heads", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(
      read.num_kv_heads,
      config.IntOr("num_key_value_heads", read.num_heads, 1, 1024));
  if (read.num_heads % read.num_kv_heads != 0) {
    return config.Invalid("num_key_value_heads",
                          absl::StrCat("is ", read.num_kv_heads,
                                       "; expected a divisor of "
                                       "num_attention_heads, which is ",
                                       read.num_heads));
  }
  RECURVE_ASSIGN_OR_RETURN(
      read.head_dim,
      config.IntOr("head_dim", model.hidden_size / read.num_heads, 2, 1024));
  if (!config.Has("head_dim") &&
      (read.head_dim < 2 || read.head_dim % 2 != 0)) {
    return config.Invalid(
        "num_attention_heads",
        absl::StrCat("is ", read.num_heads, ", and hidden_size, which is ",
                     model.hidden_size, ", gives heads of ", read.head_dim,
                     "; expected an even number, or head_dim"));
  }
  if (read.head_dim % 2 != 0) {
    return config.Invalid(
        "head_dim",
        absl::StrCat("is ", read.head_dim, "; expected an even number"));
  }
  RECURVE_ASSIGN_OR_RETURN(read.norm_eps, config.Double("rms_norm_eps", 0, 1));
  RECURVE_ASSIGN_OR_RETURN(read.activation,
                           ReadActivation(config, "hidden_act",
                                          {{"silu", Activation::kSilu},
                                           {"swish", Activation::kSilu}},
                                          std::nullopt));
  RECURVE_RETURN_IF_ERROR(RequireBool(config, "attention_bias", false));
  return read;
}

absl::Status CheckOtherKeys(const JsonObject& config,
                            const std::vector<std::string>& known,
                            ModelDefinition& model) {
  for (const std::string& key : config.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (IsFunction(key) && !IsOff(config, key)) {
      return config.Invalid(
          key,
          "is not supported, and by its name it changes what the model "
          "computes; expected null, false, 0, nothing in it, or no such key");
    }
    model.ignored_keys.push_back(
        config.path().empty() ? key : absl::StrCat(config.path(), ".", key));
  }
  return absl::OkStatus();
}

absl::StatusOr<GatedDeltaConfig> ReadGatedDeltaConfig(
    const JsonObject& config) {
  GatedDeltaConfig delta;
  RECURVE_ASSIGN_OR_RETURN(delta.key_heads,
                           config.Int("linear_num_key_heads", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(delta.value_heads,
                           config.Int("linear_num_value_heads", 1, 1024));
  if (delta.value_heads % delta.key_heads != 0) {
    return config.Invalid("linear_num_value_heads",
                          absl::StrCat("is ", delta.value_heads,
                                       "; expected a multiple of "
                                       "linear_num_key_heads, which is ",
                                       delta.key_heads));
  }
  RECURVE_ASSIGN_OR_RETURN(delta.head_dim,
                           config.Int("linear_key_head_dim", 1, 1024));
  delta.scale = 1 / std::sqrt(static_cast<double>(delta.head_dim));
  RECURVE_ASSIGN_OR_RETURN(delta.value_dim,
                           config.Int("linear_value_head_dim", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(
      delta.conv_width, config.Int("linear_conv_kernel_dim", kShortConvMinWidth,
                                   kShortConvMaxWidth));
  return delta;
}

absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonObject& config,
                                                 int64_t num_layers) {
  std::vector<bool> full(num_layers);
  if (!config.Has("layer_types")) {
    RECURVE_ASSIGN_OR_RETURN(
        const int64_t interval,
        config.IntOr("full_attention_interval", 4, 1, 1024));
    for (int64_t i = 0; i < num_layers; ++i) full[i] = (i + 1) % interval == 0;
    return full;
  }
  RECURVE_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                           config.StringList("layer_types"));
  if (static_cast<int64_t>(types.size()) != num_layers) {
    return config.Invalid(
        "layer_types",
        absl::StrCat("has ", types.size(), " entries; num_hidden_layers is ",
                     num_layers));
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    full[i] = types[i] == "full_attention";
    if (!full[i] && types[i] != "linear_attention") {
      return config.Invalid(
          absl::StrCat("layer_types[", i, "]"),
          absl::StrCat("is \"", types[i],
                       "\"; supported: full_attention, linear_attention"));
    }
  }
  return full;
}

absl::StatusOr<RopeKeys> ReadRopeKeys(const JsonObject& config,
                                      const std::vector<std::string>& types) {
  RopeKeys read;
  std::vector<JsonObject> objects;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.Has(key)) continue;
    RECURVE_ASSIGN_OR_RETURN(const JsonObject rope, config.Object(key));
    for (const char* type : {"rope_type", "type"}) {
      RECURVE_RETURN_IF_ERROR(
          rope.StringOneOf(type, types, types.front()).status());
    }
    RECURVE_RETURN_IF_ERROR(rope.CheckNoUnknownKeys(
        {"mrope_interleaved", "mrope_section", "partial_rotary_factor",
         "rope_theta", "rope_type", "type"}));
    objects.push_back(rope);
  }
  objects.push_back(config);
  for (const JsonObject& from : objects) {
    // Also what does not hold must be valid.
    const bool found = read.theta || read.off;
    if (from.Has("rope_theta")) {
      RECURVE_ASSIGN_OR_RETURN(const double theta,
                               from.Double("rope_theta", 1, 1e15));
      if (!found) read.theta = theta;
    } else if (!found) {
      read.off = from.IsNull("rope_theta");
    }
    if (from.Has("partial_rotary_factor")) {
      RECURVE_ASSIGN_OR_RETURN(const double part,
                               from.Double("partial_rotary_factor", 0, 1));
      if (!read.part) read.part = part;
    }
  }
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (objects.size() == 3 && !objects[0].SameAs(objects[1], key)) {
      return config.Invalid(
          "rope_parameters",
          absl::StrCat("and rope_scaling differ in ", key,
                       "; expected only one of the two objects"));
    }
  }
  return read;
}

absl::StatusOr<double> RequireTheta(const JsonObject& config,
                                    const RopeKeys& keys) {
  if (keys.theta) return *keys.theta;
  return config.Invalid("rope_theta",
                        "is missing; expected a number from 1 to 1e15, in "
                        "rope_parameters or next to it");
}

absl::Status RequireWholeRotation(const JsonObject& config,
                                  const RopeKeys& keys) {
  if (keys.part.value_or(1) == 1) return absl::OkStatus();
  return config.Invalid(
      "partial_rotary_factor",
      absl::StrCat("is ", *keys.part, "; expected 1 or no such key"));
}

Rotation RotateFirst(int64_t head_dim, int64_t rotary, double base) {
  Rotation rotation;
  rotation.position.type = LrpeType::kRotate;
  rotation.position.theta.assign(head_dim / 2, 0.0);
  for (int64_t i = 0; i < rotary / 2; ++i) {
    const float exponent =
        static_cast<float>(2 * i) / static_cast<float>(rotary);
    rotation.position.theta[i] =
        1.0f /
        static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  rotation.position.float32_angles = true;
  if (rotary == head_dim) return rotation;
  const int64_t passing = (head_dim - rotary) / 2;  // in each half
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t i = 0; i < rotary / 2; ++i)
      rotation.order.push_back(static_cast<int32_t>(half * (rotary / 2) + i));
    for (int64_t i = 0; i < passing; ++i)
      rotation.order.push_back(
          static_cast<int32_t>(rotary + half * passing + i));
  }
  return rotation;
}

std::vector<int32_t> RowsOfHeads(const std::vector<int32_t>& order,
                                 int64_t head_dim, int64_t heads,
                                 int64_t stride, int64_t first) {
  std::vector<int32_t> rows;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t feature = order.empty() ? i : order[i];
      rows.push_back(static_cast<int32_t>(first + h * stride + feature));
    }
  }
  return rows;
}

std::vector<float> Reordered(const std::vector<float>& values,
                             const std::vector<int32_t>& order) {
  if (order.empty()) return values;
  std::vector<float> reordered;
  reordered.reserve(order.size());
  for (const int32_t i : order) reordered.push_back(values[i]);
  return reordered;
}

absl::StatusOr<AttentionTensors> ReadAttentionTensors(
    const std::string& prefix, const HybridConfig& config, int64_t query_rows,
    int64_t hidden, TensorReader& tensors) {
  const int64_t outputs = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const auto read = [&](const char* name, int64_t rows, int64_t cols) {
    return tensors.Read(absl::StrCat(prefix, name, ".weight"), {rows, cols});
  };
  AttentionTensors t;
  RECURVE_ASSIGN_OR_RETURN(t.q, read("q_proj", query_rows, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.k, read("k_proj", keys, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.v, read("v_proj", keys, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.out, read("o_proj", hidden, outputs));
  return t;
}

absl::StatusOr<NormDefinition> ReadWeightedNorm(const std::string& name,
                                                int64_t size, double eps,
                                                float plus,
                                                TensorReader& tensors) {
  NormDefinition norm;
  norm.eps = eps;
  RECURVE_ASSIGN_OR_RETURN(norm.weight, tensors.ReadVector(name, size));
  for (float& weight : norm.weight) weight += plus;
  return norm;
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadHybridUnit(
    const std::string& prefix, const HybridConfig& config,
    const ModelDefinition& model, TensorReader& tensors) {
  return ReadGatedUnit({prefix + "gate_proj.weight", prefix + "up_proj.weight",
                        prefix + "down_proj.weight"},
                       config.activation, model.intermediate_size,
                       model.hidden_size, tensors);
}

absl::Status ReadHybridModel(const Checkpoint& checkpoint,
                             const std::string& prefix, int64_t num_layers,
                             const std::string& tied,
                             HybridLayerReader read_layer,
                             TensorReader& tensors, ModelDefinition& model) {
  const std::string embedding = prefix + "embed_tokens.weight";
  RECURVE_ASSIGN_OR_RETURN(
      model.embedding,
      tensors.Read(embedding, {model.vocab_size, model.hidden_size}));
  for (int64_t i = 0; i < num_layers; ++i) {
    RECURVE_ASSIGN_OR_RETURN(
        LayerDefinition layer,
        read_layer(absl::StrCat(prefix, "layers.", i, "."), i));
    model.layers.push_back(std::move(layer));
  }
  return ReadHead(checkpoint, embedding, "lm_head.weight", tied, tensors,
                  model);
}

}  // namespace recurve
