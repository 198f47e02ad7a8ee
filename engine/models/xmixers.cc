// Checkpoints of github.com/Doraemonzzz/xmixers; described in docs/families.md.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/families.h"
#include "engine/models/family_reader.h"
#include "engine/models/linear/linear_layer.h"
#include "engine/models/tpa/tpa_layer.h"
#include "engine/models/tpe/tpe_layer.h"

namespace recurve {
namespace {

constexpr double kEps = 1e-5;

const ActivationNames kGates = {{"none", Activation::kNone},
                                {"relu", Activation::kRelu},
                                {"sigmoid", Activation::kSigmoid},
                                {"silu", Activation::kSilu}};

const ActivationNames kPointwise = {
    {"none", Activation::kNone},         {"relu", Activation::kRelu},
    {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
    {"sigmoid", Activation::kSigmoid},   {"elu", Activation::kElu},
    {"1+elu", Activation::kOnePlusElu},  {"2+elu", Activation::kTwoPlusElu},
    {"exp", Activation::kExp},           {"leak", Activation::kLeakyRelu},
    {"relu2", Activation::kReluSquared}, {"gelu", Activation::kGelu}};

ActivationNames WithSoftmax() {
  ActivationNames names = kPointwise;
  names.emplace_back("softmax_1", Activation::kSoftmax);
  return names;
}

// Settings common to all layers of a model.
struct Common {
  explicit Common(const JsonObject& config_json) : config(config_json) {}

  const JsonObject& config;
  int64_t hidden = 0;      // C
  int64_t num_layers = 0;  // L
  // eps is added to the sum of squares (the authors' PyTorch code) or to their
  // mean (their Triton kernels).
  bool eps_on_mean = false;
  std::string norm_type;
};

absl::StatusOr<NormDefinition> ReadNorm(const Common& common,
                                        const std::string& type,
                                        const std::string& prefix,
                                        int64_t num_heads,
                                        TensorReader& tensors) {
  NormDefinition norm;
  if (type == "layernorm") norm.kind = NormKind::kLayer;
  if (type == "grouprmsnorm" || type == "groupsrmsnorm")
    norm.groups = num_heads;
  const bool on_mean = common.eps_on_mean || type == "groupsrmsnorm";
  const double width =
      static_cast<double>(common.hidden) / static_cast<double>(norm.groups);
  norm.eps = on_mean ? kEps : kEps / width;
  if (type != "srmsnorm" && type != "groupsrmsnorm") {
    RECURVE_ASSIGN_OR_RETURN(
        norm.weight, tensors.ReadVector(prefix + ".weight", common.hidden));
  }
  return norm;
}

absl::StatusOr<std::string> MixerNormType(const JsonObject& config,
                                          bool gated) {
  // The authors' code supports no others in these places.
  std::vector<std::string> choices = {"rmsnorm", "grouprmsnorm"};
  if (!gated) {
    choices.insert(choices.end(), {"srmsnorm", "layernorm", "groupsrmsnorm"});
  }
  return config.StringOneOf("token_mixer_norm_type", choices, "rmsnorm");
}

// lrpe_type 1 to 3 rotate and 4 to 6 are cosines; of each three, the first
// encodes all features, the second those of low and the third those of high
// frequency.
absl::StatusOr<PositionConfig> ReadPosition(const JsonObject& config,
                                            const std::string& prefix,
                                            bool used_by_default,
                                            int64_t head_dim) {
  PositionConfig position;
  RECURVE_ASSIGN_OR_RETURN(const bool used,
                           config.BoolOr(prefix + "use_lrpe", used_by_default));
  if (!used) return position;
  const std::string key = prefix + "lrpe_type";
  RECURVE_ASSIGN_OR_RETURN(const int64_t type, config.IntOr(key, 1, 1, 6));
  RECURVE_ASSIGN_OR_RETURN(
      const double base, config.DoubleOr(prefix + "base", 10000.0, 1.0, 1e12));
  position.type = type <= 3 ? LrpeType::kRotate : LrpeType::kCosine;
  const int64_t divisor = type == 4 ? 1 : type == 2 || type == 3 ? 4 : 2;
  if (head_dim % divisor != 0) {
    return config.Invalid(
        key, absl::StrCat("is ", type, ", which needs heads of a multiple of ",
                          divisor, " features; they have ", head_dim));
  }
  position.theta = LrpeTheta(position.type, head_dim, base);
  const auto middle =
      position.theta.begin() + static_cast<int64_t>(position.theta.size() / 2);
  if (type % 3 == 2) std::fill(position.theta.begin(), middle, 0.0);
  if (type % 3 == 0) std::fill(middle, position.theta.end(), 0.0);
  return position;
}

// Heads of C / H features.
absl::StatusOr<int64_t> HeadDim(const Common& common, const std::string& key,
                                int64_t num_heads) {
  if (common.hidden % num_heads != 0) {  // also: more heads than features
    return common.config.Invalid(
        key, absl::StrCat("is ", num_heads,
                          ", which does not divide embed_dim ", common.hidden));
  }
  return common.hidden / num_heads;
}

// `dim` features in each row of B.
absl::StatusOr<FactorTensors> ReadFactors(const std::string& prefix,
                                          int64_t rank, int64_t num_heads,
                                          int64_t dim, int64_t hidden,
                                          TensorReader& tensors) {
  FactorTensors factors;
  RECURVE_ASSIGN_OR_RETURN(factors.a, tensors.Read(prefix + "_head_proj.weight",
                                                   {rank * num_heads, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      factors.b, tensors.Read(prefix + "_proj.weight", {rank * dim, hidden}));
  return factors;
}

// [x cos, x sin] is the rotation of [x, 0]: so a cosine encoding is a rotation
// of vectors of twice the length, whose second half is zero.
std::vector<int32_t> PadWithZeros(int64_t vectors, int64_t dim) {
  std::vector<int32_t> order;
  for (int64_t v = 0; v < vectors; ++v) {
    for (int64_t i = 0; i < 2 * dim; ++i)
      order.push_back(i < dim ? static_cast<int32_t>(v * dim + i) : -1);
  }
  return order;
}

absl::StatusOr<TpaDefinition> ReadTpa(const Common& common, int64_t num_heads,
                                      const std::string& position_prefix,
                                      bool position_by_default,
                                      const std::string& prefix,
                                      TensorReader& tensors) {
  const JsonObject& config = common.config;
  TpaDefinition layer;
  TpaShape& s = layer.config.shape;
  s.num_heads = num_heads;
  RECURVE_ASSIGN_OR_RETURN(int64_t dim, config.IntOr("head_dim", -1, -1, 1024));
  if (dim == -1) dim = common.hidden / num_heads;
  if (dim < 1) {
    return config.Invalid(
        "head_dim",
        absl::StrCat("is ", dim, ", with -1 for embed_dim ", common.hidden,
                     " over ", num_heads, " heads; expected at least 1"));
  }
  s.head_dim = dim;
  s.value_dim = dim;
  RECURVE_ASSIGN_OR_RETURN(s.q_rank, config.IntOr("q_rank", 8, 1, 256));
  RECURVE_ASSIGN_OR_RETURN(s.kv_rank, config.IntOr("kv_rank", 2, 1, 64));
  RECURVE_ASSIGN_OR_RETURN(
      layer.config.position,
      ReadPosition(config, position_prefix, position_by_default, dim));
  RECURVE_ASSIGN_OR_RETURN(
      layer.config.factor_activation,
      ReadActivation(config, "cp_activation", WithSoftmax(), "none"));
  RECURVE_ASSIGN_OR_RETURN(layer.tensors.q,
                           ReadFactors(prefix + "q", s.q_rank, num_heads, dim,
                                       common.hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(layer.tensors.k,
                           ReadFactors(prefix + "k", s.kv_rank, num_heads, dim,
                                       common.hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(layer.tensors.v,
                           ReadFactors(prefix + "v", s.kv_rank, num_heads, dim,
                                       common.hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      layer.tensors.out,
      tensors.Read(prefix + "o_proj.weight", {common.hidden, num_heads * dim}));
  if (layer.config.position.type == LrpeType::kCosine) {
    layer.config.position.type = LrpeType::kRotate;
    s.head_dim = 2 * dim;
    layer.tensors.q.b.row_order = PadWithZeros(s.q_rank, dim);
    layer.tensors.k.b.row_order = PadWithZeros(s.kv_rank, dim);
  }
  return layer;
}

// Projections, gate and norm, which linear_attn and tnl_attn share.
absl::StatusOr<LinearDefinition> ReadLinearLayer(const Common& common,
                                                 LinearConfig linear,
                                                 const std::string& prefix,
                                                 TensorReader& tensors) {
  const JsonObject& config = common.config;
  const int64_t c = common.hidden;
  LinearDefinition layer;
  RECURVE_ASSIGN_OR_RETURN(const bool gated,
                           config.BoolOr("use_output_gate", true));
  RECURVE_ASSIGN_OR_RETURN(const std::string norm_type,
                           MixerNormType(config, gated));
  LinearTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(t.q.b,
                           tensors.Read(prefix + "q_proj.weight", {c, c}));
  RECURVE_ASSIGN_OR_RETURN(t.k.b,
                           tensors.Read(prefix + "k_proj.weight", {c, c}));
  RECURVE_ASSIGN_OR_RETURN(t.v.b,
                           tensors.Read(prefix + "v_proj.weight", {c, c}));
  if (gated) {
    RECURVE_ASSIGN_OR_RETURN(
        linear.output_gate,
        ReadActivation(config, "gate_act", kGates, "sigmoid"));
    RECURVE_ASSIGN_OR_RETURN(
        const std::string gate_pos,
        config.StringOneOf("gate_pos", {"pre", "post"}, "pre"));
    linear.gate_after_norm = gate_pos == "post";
    RECURVE_ASSIGN_OR_RETURN(
        t.gate_in, tensors.ReadWithAnyRows(prefix + "output_gate.0.weight", c));
    RECURVE_ASSIGN_OR_RETURN(t.gate_out,
                             tensors.Read(prefix + "output_gate.1.weight",
                                          {c, t.gate_in.tensor.shape[0]}));
  }
  RECURVE_ASSIGN_OR_RETURN(
      layer.norm,
      ReadNorm(common, norm_type, prefix + "norm", linear.num_heads, tensors));
  RECURVE_ASSIGN_OR_RETURN(t.out,
                           tensors.Read(prefix + "o_proj.weight", {c, c}));
  layer.config = std::move(linear);
  return layer;
}

absl::StatusOr<LinearConfig> HeadsOf(const Common& common,
                                     const std::string& heads_key) {
  LinearConfig linear;
  RECURVE_ASSIGN_OR_RETURN(linear.num_heads,
                           common.config.IntOr(heads_key, 8, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(linear.head_dim,
                           HeadDim(common, heads_key, linear.num_heads));
  linear.value_dim = linear.head_dim;
  linear.log_decay.assign(linear.num_heads, 0.0);
  return linear;
}

absl::StatusOr<LinearDefinition> ReadLinearAttention(
    const Common& common, const std::string& heads_key,
    const std::string& position_prefix, bool position_by_default,
    const std::string& prefix, TensorReader& tensors) {
  const JsonObject& config = common.config;
  RECURVE_ASSIGN_OR_RETURN(LinearConfig linear, HeadsOf(common, heads_key));
  RECURVE_ASSIGN_OR_RETURN(const int64_t kv_heads,
                           config.IntOr("kv_heads", -1, -1, 1024));
  if (kv_heads != -1 && kv_heads != linear.num_heads) {
    return config.Invalid("kv_heads",
                          absl::StrCat("is ", kv_heads, "; expected -1 or ",
                                       linear.num_heads, ", the heads"));
  }
  RECURVE_ASSIGN_OR_RETURN(
      linear.q_activation,
      ReadActivation(config, "linear_activation", WithSoftmax(), "silu"));
  linear.k_activation = linear.q_activation;
  RECURVE_ASSIGN_OR_RETURN(linear.position,
                           ReadPosition(config, position_prefix,
                                        position_by_default, linear.head_dim));
  // The authors' files keep dense memory's projections, which are unused.
  for (const char* name : {"alpha_proj", "beta_proj.0", "beta_proj.1"})
    tensors.Ignore(absl::StrCat(prefix, name, ".weight"));
  return ReadLinearLayer(common, std::move(linear), prefix, tensors);
}

absl::StatusOr<LinearDefinition> ReadTnl(const Common& common, int64_t index,
                                         const std::string& heads_key,
                                         const std::string& prefix,
                                         TensorReader& tensors) {
  const JsonObject& config = common.config;
  RECURVE_RETURN_IF_ERROR(RequireBool(config, "use_initial_state", false));
  RECURVE_ASSIGN_OR_RETURN(LinearConfig linear, HeadsOf(common, heads_key));
  const auto activation = [&](const char* key) {
    return ReadActivation(config, key, WithSoftmax(), "silu");
  };
  RECURVE_ASSIGN_OR_RETURN(linear.q_activation, activation("q_activation"));
  RECURVE_ASSIGN_OR_RETURN(linear.k_activation, activation("k_activation"));
  RECURVE_ASSIGN_OR_RETURN(linear.v_activation, activation("v_activation"));
  const auto norm =
      [&](const char* key,
          int64_t dim) -> absl::StatusOr<std::optional<NormDefinition>> {
    RECURVE_ASSIGN_OR_RETURN(const bool used, config.BoolOr(key, false));
    if (!used) return std::nullopt;
    const double scale =
        common.eps_on_mean ? static_cast<double>(linear.head_dim) : 1.0;
    return L2NormOfHeads(linear.num_heads, dim, kEps * scale);
  };
  RECURVE_ASSIGN_OR_RETURN(linear.q_norm, norm("q_norm", linear.head_dim));
  RECURVE_ASSIGN_OR_RETURN(linear.k_norm, norm("k_norm", linear.head_dim));
  RECURVE_ASSIGN_OR_RETURN(linear.v_norm, norm("v_norm", linear.value_dim));
  RECURVE_ASSIGN_OR_RETURN(const double n_min,
                           config.DoubleOr("n_min", 2, 1e-3, 1e9));
  RECURVE_ASSIGN_OR_RETURN(const double n_max,
                           config.DoubleOr("n_max", 256, 1e-3, 1e9));
  if (linear.num_heads == 1 || common.num_layers == 1) {
    return config.Invalid(
        linear.num_heads == 1 ? heads_key : "num_layers",
        "is 1; decays of tnl_attn are spread over at least 2");
  }
  const double layer_scale =
      1 -
      static_cast<double>(index) / static_cast<double>(common.num_layers - 1) +
      1e-5;
  for (int64_t h = 0; h < linear.num_heads; ++h) {
    const double part =
        static_cast<double>(h) / static_cast<double>(linear.num_heads - 1);
    const double n =
        std::exp(std::log(n_min) + (std::log(n_max) - std::log(n_min)) * part);
    linear.log_decay[h] = -layer_scale / n;
  }
  return ReadLinearLayer(common, std::move(linear), prefix, tensors);
}

// The mixer type of each layer.
absl::StatusOr<std::vector<std::string>> MixerTypes(const Common& common,
                                                    const std::string& type) {
  const JsonObject& config = common.config;
  if (type != "naive_hybrid") {
    const std::string only = type == "llama_" ? "tpa"
                             : type == "tnl"  ? "tnl_attn"
                                              : "linear_attn";
    std::optional<std::string> by_default = only;
    // The authors' default there is another mixer.
    if (type == "llama_") by_default.reset();
    RECURVE_RETURN_IF_ERROR(
        config.StringOneOf("token_mixer_type", {only}, by_default).status());
    return std::vector<std::string>(common.num_layers, only);
  }
  const std::vector<std::string> supported = {"tpa", "linear_attn", "tnl_attn"};
  std::vector<std::string> list;
  if (config.Has("token_mixer_type_list")) {
    RECURVE_ASSIGN_OR_RETURN(list, config.StringList("token_mixer_type_list"));
  }
  if (list.empty()) {
    RECURVE_ASSIGN_OR_RETURN(const std::string only,
                             config.StringOneOf("token_mixer_type", supported));
    list.push_back(only);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (std::find(supported.begin(), supported.end(), list[i]) ==
        supported.end()) {
      return config.Invalid(
          absl::StrCat("token_mixer_type_list[", i, "]"),
          absl::StrCat("is \"", list[i],
                       "\"; supported: tpa, linear_attn, tnl_attn"));
    }
  }
  std::vector<std::string> types;
  for (int64_t i = 0; i < common.num_layers; ++i)
    types.push_back(list[i % list.size()]);
  return types;
}

absl::Status ReadMixers(const Common& common, const std::string& model_type,
                        TensorReader& tensors, ModelDefinition& model) {
  const JsonObject& config = common.config;
  RECURVE_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                           MixerTypes(common, model_type));
  const bool hybrid = model_type == "naive_hybrid";
  const std::string heads_key = hybrid ? "linear_num_heads" : "num_heads";
  // In the authors' hybrid, a linear layer's position settings also apply to
  // the layers after it.
  std::string tpa_position;
  bool tpa_position_by_default = true;
  for (int64_t i = 0; i < common.num_layers; ++i) {
    const std::string prefix =
        absl::StrCat("model.layers.", i, ".token_mixer.");
    LayerDefinition layer;
    if (types[i] == "tpa") {
      RECURVE_ASSIGN_OR_RETURN(const int64_t num_heads,
                               config.IntOr(heads_key, 8, 1, 1024));
      RECURVE_ASSIGN_OR_RETURN(
          TpaDefinition tpa, ReadTpa(common, num_heads, tpa_position,
                                     tpa_position_by_default, prefix, tensors));
      layer.mixer = std::make_shared<TpaLayer>(std::move(tpa));
    } else {
      if (hybrid) {
        tpa_position = "linear_";
        tpa_position_by_default = false;
      }
      RECURVE_ASSIGN_OR_RETURN(
          LinearDefinition linear,
          types[i] == "tnl_attn"
              ? ReadTnl(common, i, heads_key, prefix, tensors)
              : ReadLinearAttention(common, heads_key, hybrid ? "linear_" : "",
                                    !hybrid, prefix, tensors));
      layer.mixer = std::make_shared<LinearLayer>(std::move(linear));
    }
    model.layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

// Reads norms and channel mixers into the layers, whose token mixers are set.
absl::Status ReadLayers(const Common& common, Activation activation,
                        TensorReader& tensors, ModelDefinition& model) {
  const int64_t c = common.hidden;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerDefinition& layer = model.layers[i];
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    RECURVE_ASSIGN_OR_RETURN(
        layer.token_norm,
        ReadNorm(common, common.norm_type, prefix + "token_norm", 1, tensors));
    RECURVE_ASSIGN_OR_RETURN(layer.channel_norm,
                             ReadNorm(common, common.norm_type,
                                      prefix + "channel_norm", 1, tensors));
    const std::string glu = prefix + "channel_mixer.";
    RECURVE_ASSIGN_OR_RETURN(
        layer.feed_forward,
        ReadGatedUnit({glu + "w1.weight", glu + "w2.weight", glu + "w3.weight"},
                      activation, model.intermediate_size, c, tensors));
  }
  RECURVE_ASSIGN_OR_RETURN(
      model.final_norm,
      ReadNorm(common, common.norm_type, "model.final_norm", 1, tensors));
  return absl::OkStatus();
}

// Queries and keys are constants there, so only their product per head matters.
absl::StatusOr<TpeDefinition> ReadTpe(const Common& common,
                                      TensorReader& tensors) {
  const JsonObject& config = common.config;
  TpeDefinition tpe;
  RECURVE_ASSIGN_OR_RETURN(tpe.num_heads,
                           config.IntOr("num_heads", 8, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(const int64_t dim,
                           HeadDim(common, "num_heads", tpe.num_heads));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<float> q,
                           tensors.ReadVector("model.tpe.q", common.hidden));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<float> k,
                           tensors.ReadVector("model.tpe.k", common.hidden));
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<float> log_decay,
      tensors.ReadVector("model.tpe.log_decay", tpe.num_heads));
  for (int64_t h = 0; h < tpe.num_heads; ++h) {
    double gain = 0;
    for (int64_t d = h * dim; d < (h + 1) * dim; ++d)
      gain += static_cast<double>(q[d]) * static_cast<double>(k[d]);
    tpe.gain.push_back(static_cast<float>(gain));
    tpe.decay.push_back(static_cast<float>(
        1 / (1 + std::exp(-static_cast<double>(log_decay[h])))));
  }
  RECURVE_ASSIGN_OR_RETURN(const std::string norm_type,
                           MixerNormType(config, /*gated=*/false));
  RECURVE_ASSIGN_OR_RETURN(
      tpe.norm,
      ReadNorm(common, norm_type, "model.tpe.norm", tpe.num_heads, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      tpe.out,
      tensors.Read("model.tpe.o_proj.weight", {common.hidden, common.hidden}));
  return tpe;
}

// Refuses options that change the mathematics.
absl::Status RefuseUnsupported(const JsonObject& config,
                               const std::string& model_type) {
  RECURVE_RETURN_IF_ERROR(RequireBool(config, "bias", false));
  RECURVE_RETURN_IF_ERROR(RequireBool(config, "causal", true));
  if (model_type == "llama_") {
    RECURVE_RETURN_IF_ERROR(RequireBool(config, "use_postnorm", false));
  }
  if (model_type == "linear_transformer") {
    RECURVE_RETURN_IF_ERROR(RequireBool(config, "use_ape", false));
  }
  return config.StringOneOf("channel_mixer_type", {"glu"}, "glu").status();
}

// The authors round the vocabulary up to a multiple of 256, except in tnl.
absl::Status ReadVocabulary(const Checkpoint& checkpoint,
                            const std::string& model_type,
                            TensorReader& tensors, ModelDefinition& model) {
  const JsonObject& config = checkpoint.config();
  const std::string name = "model.embed_tokens.weight";
  RECURVE_ASSIGN_OR_RETURN(const int64_t vocab,
                           config.IntOr("vocab_size", 64000, 1, kMaxDim));
  model.vocab_size = vocab;
  const int64_t padded = (vocab + 255) / 256 * 256;
  const absl::StatusOr<TensorView> found = checkpoint.Tensor(name);
  if (model_type != "tnl" && found.ok() && found->shape.size() == 2 &&
      found->shape[0] == padded) {
    model.vocab_size = padded;
  }
  const std::vector<int64_t> table = {model.vocab_size, model.hidden_size};
  RECURVE_ASSIGN_OR_RETURN(model.embedding, tensors.Read(name, table));
  RECURVE_ASSIGN_OR_RETURN(const std::string tied, ReadTie(config));
  return ReadHead(checkpoint, name, "lm_head.weight", tied, tensors, model);
}

}  // namespace

bool IsXmixers(const Checkpoint& checkpoint) {
  const auto type = checkpoint.config().StringOr("model_type", "");
  return type.ok() && (*type == "llama_" || *type == "linear_transformer" ||
                       *type == "tnl" || *type == "naive_hybrid");
}

absl::StatusOr<ModelDefinition> ReadXmixers(const Checkpoint& checkpoint,
                                            const std::string& /*variant*/) {
  const JsonObject& config = checkpoint.config();
  RECURVE_ASSIGN_OR_RETURN(
      const std::string type,
      config.StringOneOf("model_type", {"llama_", "linear_transformer", "tnl",
                                        "naive_hybrid"}));
  RECURVE_RETURN_IF_ERROR(RefuseUnsupported(config, type));
  ModelDefinition model;
  model.family = "xmixers";
  RECURVE_ASSIGN_OR_RETURN(model.hidden_size,
                           config.IntOr("embed_dim", 1024, 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(model.intermediate_size,
                           config.IntOr("mid_dim", 1024, 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(
      model.max_position_embeddings,
      config.IntOr("max_position_embeddings", 1024, 1, int64_t{1} << 31));
  RECURVE_ASSIGN_OR_RETURN(const bool gate_linear,
                           config.BoolOr("use_gate_linear", true));
  RECURVE_ASSIGN_OR_RETURN(
      const Activation activation,
      ReadActivation(config, "channel_mixer_activation",
                     gate_linear ? kGates : kPointwise, "silu"));
  RECURVE_ASSIGN_OR_RETURN(const bool scaled,
                           config.BoolOr("use_embed_scale", false));
  if (scaled) {
    model.embedding_scale =
        static_cast<float>(std::sqrt(static_cast<double>(model.hidden_size)));
  }

  Common common(config);
  common.hidden = model.hidden_size;
  RECURVE_ASSIGN_OR_RETURN(common.num_layers,
                           config.IntOr("num_layers", 24, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(
      common.norm_type,
      config.StringOneOf("norm_type", {"rmsnorm", "srmsnorm", "layernorm"},
                         "rmsnorm"));
  RECURVE_ASSIGN_OR_RETURN(
      const std::string eps_on,
      config.StringOneOf("norm_eps_on", {"sum", "mean"}, "sum"));
  common.eps_on_mean = eps_on == "mean";

  TensorReader tensors(checkpoint);
  RECURVE_RETURN_IF_ERROR(ReadVocabulary(checkpoint, type, tensors, model));
  RECURVE_RETURN_IF_ERROR(
      ReadSpecialTokens(checkpoint, checkpoint.config(), model));
  if (type == "linear_transformer") {
    RECURVE_ASSIGN_OR_RETURN(const bool use_tpe,
                             config.BoolOr("use_tpe", true));
    if (use_tpe) {
      RECURVE_ASSIGN_OR_RETURN(TpeDefinition tpe, ReadTpe(common, tensors));
      model.tpe = std::make_shared<TpeLayer>(std::move(tpe));
    }
  }
  RECURVE_RETURN_IF_ERROR(ReadMixers(common, type, tensors, model));
  RECURVE_RETURN_IF_ERROR(ReadLayers(common, activation, tensors, model));
  RECURVE_RETURN_IF_ERROR(tensors.Finish(model));
  return model;
}

}  // namespace recurve
