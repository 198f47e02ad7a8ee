// Qwen3.5 and its successors of the same form, dense; described in
// docs/families.md. Text only.

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/attention/attention_layer.h"
#include "engine/models/families.h"
#include "engine/models/family_reader.h"
#include "engine/models/hybrid_reader.h"

namespace recurve {
namespace {

const std::vector<std::string>& KnownKeys() {
  static const auto* const keys =
      new std::vector<std::string>{"architectures",
                                   "attention_bias",
                                   "attn_output_gate",
                                   "bos_token_id",
                                   "dtype",
                                   "eos_token_id",
                                   "full_attention_interval",
                                   "head_dim",
                                   "hidden_act",
                                   "hidden_size",
                                   "intermediate_size",
                                   "layer_types",
                                   "linear_conv_kernel_dim",
                                   "linear_key_head_dim",
                                   "linear_num_key_heads",
                                   "linear_num_value_heads",
                                   "linear_value_head_dim",
                                   "mamba_ssm_dtype",
                                   "max_position_embeddings",
                                   "model_type",
                                   "num_attention_heads",
                                   "num_hidden_layers",
                                   "num_key_value_heads",
                                   "output_gate_type",
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

// What is read next to `text_config`.
absl::Status CheckTop(const JsonObject& top, const JsonObject& text,
                      ModelDefinition& model) {
  std::vector<std::string> known = {
      "architectures", "bos_token_id", "dtype",       "eos_token_id",
      "model_type",    "text_config",  "torch_dtype", "tie_word_embeddings"};
  // A copy of what is read does no harm.
  for (const std::string& key : KnownKeys()) {
    if (top.SameAs(text, key)) known.push_back(key);
  }
  RECURVE_RETURN_IF_ERROR(CheckOtherKeys(top, known, model));
  return text
      .StringOneOf("model_type", {"qwen3_5_text", "qwen3_5"}, "qwen3_5_text")
      .status();
}

// What is read of a config; `text` is the part of the language model.
struct Config {
  HybridConfig common;
  GatedDeltaConfig delta;
  Rotation rotation;
  bool gated = true;  // attention
  std::vector<bool> full;
};

absl::StatusOr<Rotation> ReadRotation(const JsonObject& text,
                                      int64_t head_dim) {
  RECURVE_ASSIGN_OR_RETURN(const RopeKeys rope,
                           ReadRopeKeys(text, {"default", "mrope"}));
  RECURVE_ASSIGN_OR_RETURN(const double base, RequireTheta(text, rope));
  if (!rope.part) {
    return text.Invalid("partial_rotary_factor",
                        "is missing; expected a number from 0 to 1, in "
                        "rope_parameters or next to it");
  }
  const auto rotary =
      static_cast<int64_t>(static_cast<double>(head_dim) * *rope.part);
  if (rotary % 2 != 0) {
    return text.Invalid("partial_rotary_factor",
                        absl::StrCat("is ", *rope.part, ", which rotates ",
                                     rotary, " features of a head of ",
                                     head_dim, "; expected an even number"));
  }
  return RotateFirst(head_dim, rotary, base);
}

absl::StatusOr<Config> ReadConfig(const JsonObject& text,
                                  ModelDefinition& model) {
  RECURVE_RETURN_IF_ERROR(CheckOtherKeys(text, KnownKeys(), model));
  Config config;
  RECURVE_ASSIGN_OR_RETURN(config.common, ReadHybridConfig(text, model));
  RECURVE_ASSIGN_OR_RETURN(config.delta, ReadGatedDeltaConfig(text));
  config.delta.norm_eps = config.common.norm_eps;
  RECURVE_RETURN_IF_ERROR(
      text.StringOneOf("mamba_ssm_dtype", {"float32"}, "float32").status());
  // The gate behind the delta rule. The library has no other.
  RECURVE_RETURN_IF_ERROR(
      text.StringOneOf("output_gate_type", {"silu", "swish"}, "silu").status());
  RECURVE_ASSIGN_OR_RETURN(config.rotation,
                           ReadRotation(text, config.common.head_dim));
  RECURVE_ASSIGN_OR_RETURN(config.gated, text.BoolOr("attn_output_gate", true));
  RECURVE_ASSIGN_OR_RETURN(config.full,
                           ReadLayerTypes(text, config.common.num_layers));
  return config;
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadDelta(
    const std::string& prefix, const Config& config, int64_t hidden,
    TensorReader& tensors) {
  GatedDeltaDefinition layer;
  layer.config = config.delta;
  const GatedDeltaConfig& c = layer.config;
  const int64_t values = c.value_heads * c.value_dim;
  GatedDeltaTensors& t = layer.tensors;
  const auto read = [&](const char* name, int64_t rows, int64_t cols) {
    return tensors.Read(absl::StrCat(prefix, name, ".weight"), {rows, cols});
  };
  RECURVE_ASSIGN_OR_RETURN(const TensorView qkv,
                           read("in_proj_qkv", c.channels(), hidden));
  t.qkv.emplace_back(qkv);
  RECURVE_ASSIGN_OR_RETURN(t.z, read("in_proj_z", values, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.b, read("in_proj_b", c.value_heads, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.a, read("in_proj_a", c.value_heads, hidden));
  RECURVE_ASSIGN_OR_RETURN(t.conv_weight,
                           tensors.ReadValues(prefix + "conv1d.weight",
                                              {c.channels(), 1, c.conv_width}));
  RECURVE_ASSIGN_OR_RETURN(t.a_log,
                           tensors.ReadVector(prefix + "A_log", c.value_heads));
  RECURVE_ASSIGN_OR_RETURN(
      t.dt_bias, tensors.ReadVector(prefix + "dt_bias", c.value_heads));
  RECURVE_ASSIGN_OR_RETURN(
      t.norm_weight, tensors.ReadVector(prefix + "norm.weight", c.value_dim));
  RECURVE_ASSIGN_OR_RETURN(t.out, read("out_proj", hidden, values));
  return std::make_shared<GatedDeltaLayer>(std::move(layer));
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadAttention(
    const std::string& prefix, const Config& config, int64_t hidden,
    TensorReader& tensors) {
  const HybridConfig& common = config.common;
  const int64_t dim = common.head_dim;
  const int64_t heads = common.num_heads;
  const int64_t kv_heads = common.num_kv_heads;
  const std::vector<int32_t>& order = config.rotation.order;
  AttentionDefinition layer;
  AttentionConfig& c = layer.config;
  c.shape = {heads, kv_heads, dim, dim};
  c.scale = 1 / std::sqrt(static_cast<double>(dim));
  c.position = config.rotation.position;
  // The rows of a head are its query, then its gate.
  const int64_t rows_of_head = config.gated ? 2 * dim : dim;
  AttentionTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(
      t, ReadAttentionTensors(prefix, common, heads * rows_of_head, hidden,
                              tensors));
  t.q.row_order = RowsOfHeads(order, dim, heads, rows_of_head, 0);
  if (config.gated) {
    const std::vector<int32_t> gates =
        RowsOfHeads({}, dim, heads, rows_of_head, dim);
    t.q.row_order.insert(t.q.row_order.end(), gates.begin(), gates.end());
    t.gate_in_q = true;
  }
  t.k.row_order = RowsOfHeads(order, dim, kv_heads, dim, 0);
  AttentionConfig::Norm norm;
  norm.of_heads = true;
  norm.eps = common.norm_eps;
  for (const auto& [name, weight] : {std::pair("q_norm.weight", &norm.q),
                                     std::pair("k_norm.weight", &norm.k)}) {
    RECURVE_ASSIGN_OR_RETURN(
        NormDefinition of_head,
        ReadWeightedNorm(prefix + name, dim, common.norm_eps, 1, tensors));
    *weight = Reordered(of_head.weight, order);
  }
  c.norm = std::move(norm);
  return std::make_shared<AttentionLayer>(std::move(layer));
}

absl::StatusOr<LayerDefinition> ReadLayer(const std::string& prefix, bool full,
                                          const Config& config,
                                          const ModelDefinition& model,
                                          TensorReader& tensors) {
  const int64_t hidden = model.hidden_size;
  LayerDefinition layer;
  RECURVE_ASSIGN_OR_RETURN(
      layer.mixer,
      full ? ReadAttention(prefix + "self_attn.", config, hidden, tensors)
           : ReadDelta(prefix + "linear_attn.", config, hidden, tensors));
  const double eps = config.common.norm_eps;
  RECURVE_ASSIGN_OR_RETURN(layer.token_norm,
                           ReadWeightedNorm(prefix + "input_layernorm.weight",
                                            hidden, eps, 1, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      layer.channel_norm,
      ReadWeightedNorm(prefix + "post_attention_layernorm.weight", hidden, eps,
                       1, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      layer.feed_forward,
      ReadHybridUnit(prefix + "mlp.", config.common, model, tensors));
  return layer;
}

// The files of published checkpoints hold more than the language model.
void SkipOthers(const Checkpoint& checkpoint, TensorReader& tensors,
                ModelDefinition& model) {
  int64_t vision = 0;
  int64_t draft = 0;
  for (const std::string& name : checkpoint.names()) {
    const bool of_vision = absl::StartsWith(name, "model.visual.") ||
                           absl::StartsWith(name, "visual.");
    const bool of_draft = absl::StartsWith(name, "mtp.");
    vision += of_vision ? 1 : 0;
    draft += of_draft ? 1 : 0;
    if (of_vision || of_draft) tensors.Ignore(name);
  }
  if (vision > 0) {
    model.remarks.push_back(absl::StrCat(
        "text only: ", vision, " tensors of the vision tower are not loaded"));
  }
  if (draft > 0) {
    model.remarks.push_back(absl::StrCat(
        draft, " tensors of multi-token prediction (mtp.) are not loaded"));
  }
}

}  // namespace

bool IsQwen35(const Checkpoint& checkpoint) {
  const auto type = checkpoint.config().StringOr("model_type", "");
  return type.ok() && (*type == "qwen3_5" || *type == "qwen3_5_text");
}

absl::StatusOr<ModelDefinition> ReadQwen35(const Checkpoint& checkpoint,
                                           const std::string& /*variant*/) {
  const JsonObject& top = checkpoint.config();
  JsonObject text = top;
  if (top.Has("text_config")) {
    RECURVE_ASSIGN_OR_RETURN(text, top.Object("text_config"));
  }
  ModelDefinition model;
  model.family = "qwen3_5";
  if (top.Has("text_config")) {
    RECURVE_RETURN_IF_ERROR(CheckTop(top, text, model));
  }
  RECURVE_ASSIGN_OR_RETURN(const Config config, ReadConfig(text, model));
  // For the whole, if there are two.
  RECURVE_RETURN_IF_ERROR(ReadSpecialTokens(
      checkpoint, top.Has("eos_token_id") ? top : text, model));
  RECURVE_ASSIGN_OR_RETURN(
      const std::string tied,
      ReadTie(top.Has("tie_word_embeddings") ? top : text));

  TensorReader tensors(checkpoint);
  const std::string prefix =
      checkpoint.Has("model.language_model.embed_tokens.weight")
          ? "model.language_model."
          : "model.";
  RECURVE_RETURN_IF_ERROR(ReadHybridModel(
      checkpoint, prefix, config.common.num_layers, tied,
      [&](const std::string& layer, int64_t i) {
        return ReadLayer(layer, config.full[i], config, model, tensors);
      },
      tensors, model));
  RECURVE_ASSIGN_OR_RETURN(
      model.final_norm,
      ReadWeightedNorm(prefix + "norm.weight", model.hidden_size,
                       config.common.norm_eps, 1, tensors));
  SkipOthers(checkpoint, tensors, model);
  RECURVE_RETURN_IF_ERROR(tensors.Finish(model));
  return model;
}

}  // namespace recurve
