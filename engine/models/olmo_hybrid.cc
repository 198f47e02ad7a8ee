// OLMo Hybrid; described in docs/families.md.

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/attention/attention_layer.h"
#include "engine/models/families.h"
#include "engine/models/family_reader.h"
#include "engine/models/hybrid_reader.h"

namespace recurve {
namespace {

// The authors' code fixes this one, whatever rms_norm_eps is.
constexpr double kGatedNormEps = 1e-5;
// The library's, where the config has none.
constexpr double kDefaultTheta = 10000.0;

const std::vector<std::string>& KnownKeys() {
  static const auto* const keys =
      new std::vector<std::string>{"architectures",
                                   "attention_bias",
                                   "bos_token_id",
                                   "dtype",
                                   "eos_token_id",
                                   "full_attention_interval",
                                   "head_dim",
                                   "hidden_act",
                                   "hidden_size",
                                   "intermediate_size",
                                   "layer_types",
                                   "linear_allow_neg_eigval",
                                   "linear_conv_kernel_dim",
                                   "linear_key_head_dim",
                                   "linear_num_key_heads",
                                   "linear_num_value_heads",
                                   "linear_use_gate",
                                   "linear_value_head_dim",
                                   "max_position_embeddings",
                                   "model_type",
                                   "num_attention_heads",
                                   "num_hidden_layers",
                                   "num_key_value_heads",
                                   "partial_rotary_factor",
                                   "rms_norm_eps",
                                   "rope_parameters",
                                   "rope_scaling",
                                   "rope_theta",
                                   "tie_word_embeddings",
                                   "torch_dtype",
                                   "vocab_size"};
  return *keys;
}

struct Config {
  HybridConfig common;
  GatedDeltaConfig delta;
  PositionConfig position;
  std::vector<bool> full;
};

// A null rope_theta means no rotation. Nothing about it, a rotation with the
// default.
absl::StatusOr<PositionConfig> ReadPosition(const JsonObject& config,
                                            int64_t head_dim) {
  RECURVE_ASSIGN_OR_RETURN(const RopeKeys rope,
                           ReadRopeKeys(config, {"default"}));
  RECURVE_RETURN_IF_ERROR(RequireWholeRotation(config, rope));
  if (rope.off) return PositionConfig();
  return RotateFirst(head_dim, head_dim, rope.theta.value_or(kDefaultTheta))
      .position;
}

absl::StatusOr<Config> ReadConfig(const JsonObject& json,
                                  ModelDefinition& model) {
  RECURVE_RETURN_IF_ERROR(CheckOtherKeys(json, KnownKeys(), model));
  Config config;
  RECURVE_ASSIGN_OR_RETURN(config.common, ReadHybridConfig(json, model));
  RECURVE_ASSIGN_OR_RETURN(config.delta, ReadGatedDeltaConfig(json));
  config.delta.norm_eps = kGatedNormEps;
  RECURVE_RETURN_IF_ERROR(RequireBool(json, "linear_use_gate", true));
  RECURVE_ASSIGN_OR_RETURN(const bool negative,
                           json.BoolOr("linear_allow_neg_eigval", true));
  config.delta.beta_scale = negative ? 2 : 1;
  RECURVE_ASSIGN_OR_RETURN(config.position,
                           ReadPosition(json, config.common.head_dim));
  RECURVE_ASSIGN_OR_RETURN(config.full,
                           ReadLayerTypes(json, config.common.num_layers));
  return config;
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadDelta(
    const std::string& prefix, const Config& config,
    const Checkpoint& checkpoint, int64_t hidden, TensorReader& tensors) {
  GatedDeltaDefinition layer;
  layer.config = config.delta;
  const GatedDeltaConfig& c = layer.config;
  const int64_t keys = c.key_heads * c.head_dim;
  const int64_t values = c.value_heads * c.value_dim;
  GatedDeltaTensors& t = layer.tensors;
  const auto read = [&](const char* name, int64_t rows, int64_t cols) {
    return tensors.Read(absl::StrCat(prefix, name, ".weight"), {rows, cols});
  };
  // The library's newer releases write one tensor.
  const std::string conv = prefix + "conv1d.weight";
  const bool together = checkpoint.Has(conv);
  if (together) {
    RECURVE_ASSIGN_OR_RETURN(
        t.conv_weight,
        tensors.ReadValues(conv, {c.channels(), 1, c.conv_width}));
  }
  for (const auto& [name, rows] :
       {std::pair("q", keys), std::pair("k", keys), std::pair("v", values)}) {
    RECURVE_ASSIGN_OR_RETURN(
        const TensorView part,
        read(absl::StrCat(name, "_proj").c_str(), rows, hidden));
    t.qkv.emplace_back(part);
    if (together) continue;
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<float> weight,
        tensors.ReadValues(absl::StrCat(prefix, name, "_conv1d.weight"),
                           {rows, 1, c.conv_width}));
    t.conv_weight.insert(t.conv_weight.end(), weight.begin(), weight.end());
  }
  RECURVE_ASSIGN_OR_RETURN(t.z, read("g_proj", values, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.b, read("b_proj", c.value_heads, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.a, read("a_proj", c.value_heads, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.a_log,
                           tensors.ReadVector(prefix + "A_log", c.value_heads));
  RECURVE_ASSIGN_OR_RETURN(
      t.dt_bias, tensors.ReadVector(prefix + "dt_bias", c.value_heads));
  RECURVE_ASSIGN_OR_RETURN(
      t.norm_weight, tensors.ReadVector(prefix + "o_norm.weight", c.value_dim));
  RECURVE_ASSIGN_OR_RETURN(t.out, read("o_proj", hidden, values));
  return std::make_shared<GatedDeltaLayer>(std::move(layer));
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadAttention(
    const std::string& prefix, const Config& config, int64_t hidden,
    TensorReader& tensors) {
  const HybridConfig& common = config.common;
  const int64_t dim = common.head_dim;
  const int64_t queries = common.num_heads * dim;
  const int64_t keys = common.num_kv_heads * dim;
  AttentionDefinition layer;
  AttentionConfig& c = layer.config;
  c.shape = {common.num_heads, common.num_kv_heads, dim, dim};
  c.scale = 1 / std::sqrt(static_cast<double>(dim));
  c.position = config.position;
  RECURVE_ASSIGN_OR_RETURN(
      layer.tensors,
      ReadAttentionTensors(prefix, common, queries, hidden, tensors));
  AttentionConfig::Norm norm;
  norm.eps = common.norm_eps;
  RECURVE_ASSIGN_OR_RETURN(
      norm.q, tensors.ReadVector(prefix + "q_norm.weight", queries));
  RECURVE_ASSIGN_OR_RETURN(norm.k,
                           tensors.ReadVector(prefix + "k_norm.weight", keys));
  c.norm = std::move(norm);
  return std::make_shared<AttentionLayer>(std::move(layer));
}

// Layers with attention have their norms behind each part, the others in front.
absl::StatusOr<LayerDefinition> ReadLayer(const std::string& prefix, bool full,
                                          const Config& config,
                                          const Checkpoint& checkpoint,
                                          const ModelDefinition& model,
                                          TensorReader& tensors) {
  const int64_t hidden = model.hidden_size;
  LayerDefinition layer;
  layer.norms_after = full;
  RECURVE_ASSIGN_OR_RETURN(
      layer.mixer,
      full ? ReadAttention(prefix + "self_attn.", config, hidden, tensors)
           : ReadDelta(prefix + "linear_attn.", config, checkpoint, hidden,
                       tensors));
  const auto norm = [&](const char* name) {
    return ReadWeightedNorm(prefix + name, hidden, config.common.norm_eps, 0,
                            tensors);
  };
  const bool own_names = checkpoint.Has(prefix + "attention_layer_norm.weight");
  RECURVE_ASSIGN_OR_RETURN(layer.token_norm,
                           norm(full        ? "post_attention_layernorm.weight"
                                : own_names ? "attention_layer_norm.weight"
                                            : "input_layernorm.weight"));
  RECURVE_ASSIGN_OR_RETURN(
      layer.channel_norm,
      norm(full        ? "post_feedforward_layernorm.weight"
           : own_names ? "feedforward_layer_norm.weight"
                       : "post_attention_layernorm.weight"));
  RECURVE_ASSIGN_OR_RETURN(
      layer.feed_forward,
      ReadHybridUnit(prefix + "mlp.", config.common, model, tensors));
  return layer;
}

}  // namespace

bool IsOlmoHybrid(const Checkpoint& checkpoint) {
  const auto type = checkpoint.config().StringOr("model_type", "");
  return type.ok() && *type == "olmo_hybrid";
}

absl::StatusOr<ModelDefinition> ReadOlmoHybrid(const Checkpoint& checkpoint,
                                               const std::string& /*variant*/) {
  const JsonObject& json = checkpoint.config();
  ModelDefinition model;
  model.family = "olmo_hybrid";
  RECURVE_ASSIGN_OR_RETURN(const Config config, ReadConfig(json, model));
  RECURVE_RETURN_IF_ERROR(ReadSpecialTokens(checkpoint, json, model));
  RECURVE_ASSIGN_OR_RETURN(const std::string tied, ReadTie(json));

  TensorReader tensors(checkpoint);
  RECURVE_RETURN_IF_ERROR(ReadHybridModel(
      checkpoint, "model.", config.common.num_layers, tied,
      [&](const std::string& prefix, int64_t i) {
        return ReadLayer(prefix, config.full[i], config, checkpoint, model,
                         tensors);
      },
      tensors, model));
  RECURVE_ASSIGN_OR_RETURN(
      model.final_norm, ReadWeightedNorm("model.norm.weight", model.hidden_size,
                                         config.common.norm_eps, 0, tensors));
  RECURVE_RETURN_IF_ERROR(tensors.Finish(model));
  return model;
}

}  // namespace recurve
