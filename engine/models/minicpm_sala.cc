// MiniCPM-SALA; described in docs/families.md.

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/attention/attention_layer.h"
#include "engine/models/families.h"
#include "engine/models/family_reader.h"
#include "engine/models/hybrid_reader.h"
#include "engine/models/linear/linear_layer.h"

namespace recurve {
namespace {

const std::vector<std::string>& KnownKeys() {
  static const auto* const keys = new std::vector<std::string>{
      "architectures", "attention_bias", "attn_use_output_gate",
      "attn_use_rope", "bos_token_id", "dim_model_base", "dtype",
      "eos_token_id", "head_dim", "hidden_act", "hidden_size",
      "intermediate_size",
      // Those of lightning must agree with the others; the reference does not
      // read them, nor mup_denominator.
      "lightning_head_dim", "lightning_nh", "lightning_nkv", "lightning_scale",
      "lightning_use_rope", "max_position_embeddings", "mixer_types",
      "model_type", "mup_denominator", "num_attention_heads",
      "num_hidden_layers", "num_key_value_heads", "partial_rotary_factor",
      "qk_norm", "rms_norm_eps", "rope_parameters", "rope_scaling",
      "rope_theta", "scale_depth", "scale_emb", "sparse_config",
      "tie_word_embeddings", "torch_dtype", "use_output_gate",
      "use_output_norm", "vocab_size"};
  return *keys;
}

struct Config {
  HybridConfig common;
  double theta = 0;
  std::vector<bool> full;
  // The factors of the embedding and of each branch, and that of the logits.
  double embedding = 1;
  double branch = 1;
  double logits = 1;
};

absl::StatusOr<std::vector<bool>> ReadMixers(const JsonObject& json,
                                             int64_t num_layers) {
  RECURVE_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                           json.StringList("mixer_types"));
  if (static_cast<int64_t>(types.size()) != num_layers) {
    return json.Invalid("mixer_types", absl::StrCat("has ", types.size(),
                                                    " entries; "
                                                    "num_hidden_layers is ",
                                                    num_layers));
  }
  std::vector<bool> full;
  for (int64_t i = 0; i < num_layers; ++i) {
    full.push_back(types[i] == "minicpm4");
    if (!full[i] && types[i] != "lightning" && types[i] != "lightning-attn" &&
        types[i] != "lightning_attn") {
      return json.Invalid(
          absl::StrCat("mixer_types[", i, "]"),
          absl::StrCat("is \"", types[i],
                       "\"; supported: minicpm4, lightning, lightning-attn, "
                       "lightning_attn"));
    }
  }
  return full;
}

// Beyond dense_len tokens the reference attends to some blocks only.
absl::Status ReadSparse(const JsonObject& json, ModelDefinition& model) {
  if (!json.Has("sparse_config")) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const JsonObject sparse,
                           json.Object("sparse_config"));
  RECURVE_ASSIGN_OR_RETURN(const int64_t dense,
                           sparse.Int("dense_len", 1, int64_t{1} << 31));
  if (dense >= model.max_position_embeddings) return absl::OkStatus();
  model.default_model_len = dense;
  model.remarks.push_back(absl::StrCat(
      "attention is dense at every length; the authors' code attends to some "
      "blocks only beyond ",
      dense, " tokens (sparse_config.dense_len), so --max-model-len is ", dense,
      " by default, and what comes after that differs"));
  return absl::OkStatus();
}

absl::StatusOr<Config> ReadConfig(const JsonObject& json,
                                  ModelDefinition& model) {
  RECURVE_RETURN_IF_ERROR(CheckOtherKeys(json, KnownKeys(), model));
  Config config;
  RECURVE_ASSIGN_OR_RETURN(config.common, ReadHybridConfig(json, model));
  for (const auto& [key, value] :
       {std::pair("attn_use_output_gate", true),
        std::pair("attn_use_rope", false),
        std::pair("lightning_use_rope", true), std::pair("qk_norm", true),
        std::pair("use_output_gate", true),
        std::pair("use_output_norm", true)}) {
    RECURVE_RETURN_IF_ERROR(RequireBool(json, key, value));
  }
  RECURVE_RETURN_IF_ERROR(
      json.StringOneOf("lightning_scale", {"1/sqrt(d)"}, "1/sqrt(d)").status());
  for (const char* key : {"lightning_nh", "lightning_nkv"}) {
    RECURVE_ASSIGN_OR_RETURN(const int64_t heads,
                             json.IntOr(key, config.common.num_heads, 1, 1024));
    if (heads != config.common.num_heads) {
      return json.Invalid(key, absl::StrCat("is ", heads,
                                            "; expected num_attention_heads, "
                                            "which is ",
                                            config.common.num_heads));
    }
  }
  RECURVE_ASSIGN_OR_RETURN(
      const int64_t lightning_dim,
      json.IntOr("lightning_head_dim", config.common.head_dim, 1, 1024));
  if (lightning_dim != config.common.head_dim) {
    return json.Invalid(
        "lightning_head_dim",
        absl::StrCat("is ", lightning_dim, "; expected head_dim, which is ",
                     config.common.head_dim));
  }
  RECURVE_ASSIGN_OR_RETURN(const RopeKeys rope,
                           ReadRopeKeys(json, {"default"}));
  RECURVE_ASSIGN_OR_RETURN(config.theta, RequireTheta(json, rope));
  RECURVE_RETURN_IF_ERROR(RequireWholeRotation(json, rope));
  RECURVE_ASSIGN_OR_RETURN(config.full,
                           ReadMixers(json, config.common.num_layers));
  RECURVE_ASSIGN_OR_RETURN(config.embedding,
                           json.DoubleOr("scale_emb", 1, 1e-6, 1e6));
  if (json.Has("scale_depth")) {
    RECURVE_ASSIGN_OR_RETURN(const double depth,
                             json.Double("scale_depth", 1e-6, 1e6));
    config.branch =
        depth / std::sqrt(static_cast<double>(config.common.num_layers));
  }
  if (json.Has("dim_model_base")) {
    RECURVE_ASSIGN_OR_RETURN(const double base,
                             json.Double("dim_model_base", 1, kMaxDim));
    config.logits = base / static_cast<double>(model.hidden_size);
  }
  RECURVE_RETURN_IF_ERROR(ReadSparse(json, model));
  return config;
}

// Decay e^-slope: 2^(-8 (h + 1) / H) for H a power of two; else those of the
// power below, then every other one of twice that power (ALiBi's; Press et al.,
// 2022).
std::vector<double> LogDecays(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> decays;
  for (int64_t h = 0; h < heads; ++h) {
    const double exponent =
        h < power
            ? 8.0 * static_cast<double>(h + 1) / static_cast<double>(power)
            : 8.0 * static_cast<double>(2 * (h - power) + 1) /
                  static_cast<double>(2 * power);
    decays.push_back(-std::pow(2.0, -exponent));
  }
  return decays;
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadLightning(
    const std::string& prefix, const Config& config, int64_t hidden,
    TensorReader& tensors) {
  const HybridConfig& common = config.common;
  const int64_t heads = common.num_heads;
  const int64_t dim = common.head_dim;
  const int64_t cols = heads * dim;
  LinearDefinition layer;
  LinearConfig& c = layer.config;
  c.num_heads = heads;
  c.head_dim = dim;
  c.value_dim = dim;
  c.position = RotateFirst(dim, dim, config.theta).position;
  c.log_decay = LogDecays(heads);
  c.output_gate = Activation::kSigmoid;
  c.gate_after_norm = true;
  LinearTensors& t = layer.tensors;
  const auto read = [&](const char* name, int64_t rows) {
    return tensors.Read(absl::StrCat(prefix, name, ".weight"), {rows, hidden});
  };
  RECURVE_ASSIGN_OR_RETURN(t.q.b, read("q_proj", cols));
  RECURVE_ASSIGN_OR_RETURN(t.k.b, read("k_proj", cols));
  RECURVE_ASSIGN_OR_RETURN(t.v.b, read("v_proj", cols));
  RECURVE_ASSIGN_OR_RETURN(t.gate_in, read("z_proj", cols));
  RECURVE_ASSIGN_OR_RETURN(
      t.out, tensors.Read(prefix + "o_proj.weight", {hidden, cols}));
  for (const auto& [name, norm] : {std::pair("q_norm.weight", &c.q_norm),
                                   std::pair("k_norm.weight", &c.k_norm)}) {
    RECURVE_ASSIGN_OR_RETURN(std::vector<float> weight,
                             tensors.ReadVector(prefix + name, dim));
    // The scale of queries, in their weights: both are float32.
    if (norm == &c.q_norm) {
      const auto scale =
          static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
      for (float& w : weight) w *= scale;
    }
    *norm = NormOfHeads(heads, common.norm_eps, weight);
  }
  RECURVE_ASSIGN_OR_RETURN(layer.norm,
                           ReadWeightedNorm(prefix + "o_norm.weight", cols,
                                            common.norm_eps, 0, tensors));
  return std::make_shared<LinearLayer>(std::move(layer));
}

absl::StatusOr<std::shared_ptr<const LayerPart>> ReadAttention(
    const std::string& prefix, const Config& config, int64_t hidden,
    TensorReader& tensors) {
  const HybridConfig& common = config.common;
  const int64_t dim = common.head_dim;
  const int64_t queries = common.num_heads * dim;
  AttentionDefinition layer;
  layer.config.shape = {common.num_heads, common.num_kv_heads, dim, dim};
  layer.config.scale = 1 / std::sqrt(static_cast<double>(dim));
  AttentionTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(
      t, ReadAttentionTensors(prefix, common, queries, hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      t.gate, tensors.Read(prefix + "o_gate.weight", {queries, hidden}));
  return std::make_shared<AttentionLayer>(std::move(layer));
}

// The residual is kept divided by the factor of the branches, so that branches
// are added as they are. Norms do not notice, with their eps divided by the
// factor's square.
absl::StatusOr<NormDefinition> ReadResidualNorm(const std::string& name,
                                                const Config& config,
                                                int64_t hidden,
                                                TensorReader& tensors) {
  return ReadWeightedNorm(
      name, hidden, config.common.norm_eps / (config.branch * config.branch), 0,
      tensors);
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
           : ReadLightning(prefix + "self_attn.", config, hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(layer.token_norm,
                           ReadResidualNorm(prefix + "input_layernorm.weight",
                                            config, hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      layer.channel_norm,
      ReadResidualNorm(prefix + "post_attention_layernorm.weight", config,
                       hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      layer.feed_forward,
      ReadHybridUnit(prefix + "mlp.", config.common, model, tensors));
  return layer;
}

}  // namespace

bool IsMiniCpmSala(const Checkpoint& checkpoint) {
  const auto type = checkpoint.config().StringOr("model_type", "");
  return type.ok() && *type == "minicpm_sala";
}

absl::StatusOr<ModelDefinition> ReadMiniCpmSala(
    const Checkpoint& checkpoint, const std::string& /*variant*/) {
  const JsonObject& json = checkpoint.config();
  ModelDefinition model;
  model.family = "minicpm_sala";
  RECURVE_ASSIGN_OR_RETURN(const Config config, ReadConfig(json, model));
  RECURVE_RETURN_IF_ERROR(ReadSpecialTokens(checkpoint, json, model));
  RECURVE_ASSIGN_OR_RETURN(const std::string tied, ReadTie(json));

  TensorReader tensors(checkpoint);
  model.embedding_scale = static_cast<float>(config.embedding / config.branch);
  RECURVE_RETURN_IF_ERROR(ReadHybridModel(
      checkpoint, "model.", config.common.num_layers, tied,
      [&](const std::string& prefix, int64_t i) {
        return ReadLayer(prefix, config.full[i], config, model, tensors);
      },
      tensors, model));
  RECURVE_ASSIGN_OR_RETURN(model.final_norm,
                           ReadResidualNorm("model.norm.weight", config,
                                            model.hidden_size, tensors));
  // In the norm's weight, which is float32.
  for (float& weight : model.final_norm.weight) {
    weight *= static_cast<float>(config.logits);
  }
  RECURVE_RETURN_IF_ERROR(tensors.Finish(model));
  return model;
}

}  // namespace recurve
