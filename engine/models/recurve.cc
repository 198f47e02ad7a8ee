// Recurve's own checkpoint format; described in docs/model-format.md.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/families.h"
#include "engine/models/family_reader.h"
#include "engine/models/linear/linear_layer.h"
#include "engine/models/tpa/tpa_layer.h"

namespace recurve {
namespace {

const ActivationNames kPointwise = {{"none", Activation::kNone},
                                    {"silu", Activation::kSilu},
                                    {"relu", Activation::kRelu},
                                    {"sigmoid", Activation::kSigmoid},
                                    {"elu", Activation::kElu},
                                    {"1+elu", Activation::kOnePlusElu},
                                    {"2+elu", Activation::kTwoPlusElu},
                                    {"exp", Activation::kExp},
                                    {"leaky_relu", Activation::kLeakyRelu},
                                    {"relu2", Activation::kReluSquared},
                                    {"gelu", Activation::kGelu}};

ActivationNames WithSoftmax() {
  ActivationNames names = kPointwise;
  names.emplace_back("softmax", Activation::kSoftmax);
  return names;
}

// `types` are the position types this mixer supports.
absl::StatusOr<PositionConfig> ReadPosition(
    const JsonObject& layer, const std::vector<std::string>& types,
    int64_t head_dim) {
  PositionConfig position;
  if (!layer.Has("position")) return position;
  RECURVE_ASSIGN_OR_RETURN(const JsonObject object, layer.Object("position"));
  RECURVE_RETURN_IF_ERROR(object.CheckNoUnknownKeys({"type", "base", "theta"}));
  RECURVE_ASSIGN_OR_RETURN(const std::string type,
                           object.StringOneOf("type", types));
  if (type == "none") {
    for (const char* key : {"base", "theta"}) {
      if (!object.Has(key)) continue;
      return object.Invalid(
          key, "is given together with type none; expected type alone");
    }
    return position;
  }
  position.type = type == "lrpe_rotate" ? LrpeType::kRotate : LrpeType::kCosine;
  if (position.type == LrpeType::kRotate && head_dim % 2 != 0) {
    return layer.Invalid(
        "head_dim",
        absl::StrCat("is ", head_dim, "; lrpe_rotate needs an even head_dim"));
  }
  if (object.Has("theta")) {
    if (object.Has("base")) {
      return object.Invalid("theta",
                            "is given together with base; expected one");
    }
    RECURVE_ASSIGN_OR_RETURN(
        position.theta,
        object.DoubleList("theta", LrpeAngles(position.type, head_dim)));
    return position;
  }
  RECURVE_ASSIGN_OR_RETURN(const double base,
                           object.DoubleOr("base", 10000.0, 1.0, 1e12));
  position.theta = LrpeTheta(position.type, head_dim, base);
  return position;
}

absl::StatusOr<NormDefinition> ReadRmsNorm(const std::string& name,
                                           int64_t size, double eps,
                                           TensorReader& tensors) {
  NormDefinition norm;
  norm.eps = eps;
  RECURVE_ASSIGN_OR_RETURN(norm.weight, tensors.ReadVector(name, size));
  return norm;
}

absl::StatusOr<FactorTensors> ReadFactors(const std::string& prefix,
                                          int64_t rank, int64_t num_heads,
                                          int64_t dim, int64_t hidden,
                                          TensorReader& tensors) {
  FactorTensors factors;
  if (rank > 0) {
    RECURVE_ASSIGN_OR_RETURN(
        factors.a,
        tensors.Read(prefix + "_head_proj.weight", {rank * num_heads, hidden}));
  }
  RECURVE_ASSIGN_OR_RETURN(
      factors.b, tensors.Read(prefix + "_proj.weight",
                              {(rank > 0 ? rank : num_heads) * dim, hidden}));
  return factors;
}

absl::StatusOr<TpaDefinition> ReadTpa(const JsonObject& object,
                                      const std::string& prefix, int64_t hidden,
                                      double norm_eps, TensorReader& tensors) {
  RECURVE_RETURN_IF_ERROR(object.CheckNoUnknownKeys(
      {"mixer", "num_heads", "head_dim", "value_dim", "q_rank", "kv_rank",
       "position", "factor_activation", "head_norm"}));
  TpaDefinition layer;
  TpaShape& s = layer.config.shape;
  RECURVE_ASSIGN_OR_RETURN(s.num_heads, object.Int("num_heads", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(s.head_dim, object.Int("head_dim", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(s.value_dim,
                           object.IntOr("value_dim", s.head_dim, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(s.q_rank, object.Int("q_rank", 0, 256));
  RECURVE_ASSIGN_OR_RETURN(s.kv_rank, object.Int("kv_rank", 1, 64));
  RECURVE_ASSIGN_OR_RETURN(
      layer.config.position,
      ReadPosition(object, {"none", "lrpe_rotate"}, s.head_dim));
  RECURVE_ASSIGN_OR_RETURN(
      layer.config.factor_activation,
      ReadActivation(object, "factor_activation", kPointwise, "none"));
  TpaTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(t.q, ReadFactors(prefix + "q", s.q_rank, s.num_heads,
                                            s.head_dim, hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      t.k, ReadFactors(prefix + "k", s.kv_rank, s.num_heads, s.head_dim, hidden,
                       tensors));
  RECURVE_ASSIGN_OR_RETURN(
      t.v, ReadFactors(prefix + "v", s.kv_rank, s.num_heads, s.value_dim,
                       hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(const bool head_norm,
                           object.BoolOr("head_norm", false));
  if (head_norm) {
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<float> weight,
        tensors.ReadVector(prefix + "norm.weight", s.value_dim));
    layer.norm = NormOfHeads(s.num_heads, norm_eps, weight);
  }
  RECURVE_ASSIGN_OR_RETURN(t.out,
                           tensors.Read(prefix + "o_proj.weight",
                                        {hidden, s.num_heads * s.value_dim}));
  return layer;
}

absl::StatusOr<LinearConfig> ReadLinearConfig(const JsonObject& object) {
  RECURVE_RETURN_IF_ERROR(object.CheckNoUnknownKeys(
      {"mixer", "num_heads", "head_dim", "value_dim", "q_activation",
       "k_activation", "v_activation", "output_gate", "gate_position",
       "position", "log_decay", "norm", "causal"}));
  LinearConfig c;
  RECURVE_ASSIGN_OR_RETURN(c.num_heads, object.Int("num_heads", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(c.head_dim, object.Int("head_dim", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(c.value_dim,
                           object.IntOr("value_dim", c.head_dim, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(
      c.q_activation,
      ReadActivation(object, "q_activation", WithSoftmax(), "none"));
  RECURVE_ASSIGN_OR_RETURN(
      c.k_activation,
      ReadActivation(object, "k_activation", WithSoftmax(), "none"));
  RECURVE_ASSIGN_OR_RETURN(
      c.v_activation,
      ReadActivation(object, "v_activation", WithSoftmax(), "none"));
  RECURVE_ASSIGN_OR_RETURN(
      c.position,
      ReadPosition(object, {"none", "lrpe_rotate", "lrpe_cosine"}, c.head_dim));
  if (object.Has("output_gate")) {
    RECURVE_ASSIGN_OR_RETURN(
        c.output_gate,
        ReadActivation(object, "output_gate", kPointwise, std::nullopt));
  }
  RECURVE_ASSIGN_OR_RETURN(
      const std::string gate_position,
      object.StringOneOf("gate_position", {"pre", "post"}, "pre"));
  c.gate_after_norm = gate_position == "post";
  c.log_decay.assign(c.num_heads, 0.0);
  if (object.Has("log_decay")) {
    RECURVE_ASSIGN_OR_RETURN(c.log_decay,
                             object.DoubleList("log_decay", c.num_heads));
    for (double value : c.log_decay) {
      if (value > 0) {
        return object.Invalid(
            "log_decay", absl::StrCat("has the entry ", value,
                                      "; expected at most 0 (a decay, exp of "
                                      "it, above 1 would grow without bound)"));
      }
    }
  }
  RECURVE_ASSIGN_OR_RETURN(c.causal, object.BoolOr("causal", true));
  for (double value : c.log_decay) {
    if (!c.causal && value != 0) {
      return object.Invalid(
          "log_decay",
          absl::StrCat("has the entry ", value,
                       "; expected 0 where causal is false (a prompt whose "
                       "tokens see each other has no order to decay in)"));
    }
  }
  return c;
}

absl::StatusOr<LinearDefinition> ReadLinear(const JsonObject& object,
                                            const std::string& prefix,
                                            int64_t hidden, double norm_eps,
                                            TensorReader& tensors) {
  LinearDefinition layer;
  RECURVE_ASSIGN_OR_RETURN(layer.config, ReadLinearConfig(object));
  const int64_t keys = layer.config.num_heads * layer.config.head_dim;
  const int64_t values = layer.config.num_heads * layer.config.value_dim;
  LinearTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(
      t.q.b, tensors.Read(prefix + "q_proj.weight", {keys, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      t.k.b, tensors.Read(prefix + "k_proj.weight", {keys, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      t.v.b, tensors.Read(prefix + "v_proj.weight", {values, hidden}));
  if (layer.config.output_gate) {
    RECURVE_ASSIGN_OR_RETURN(
        t.gate_in,
        tensors.ReadWithAnyRows(prefix + "output_gate.0.weight", hidden));
    RECURVE_ASSIGN_OR_RETURN(t.gate_out,
                             tensors.Read(prefix + "output_gate.1.weight",
                                          {values, t.gate_in.tensor.shape[0]}));
  }
  RECURVE_ASSIGN_OR_RETURN(
      const std::string norm,
      object.StringOneOf("norm", {"rms", "group_rms", "none"}, "rms"));
  if (norm != "none") {
    RECURVE_ASSIGN_OR_RETURN(
        layer.norm,
        ReadRmsNorm(prefix + "norm.weight", values, norm_eps, tensors));
    if (norm == "group_rms") layer.norm->groups = layer.config.num_heads;
  } else if (layer.config.output_gate) {
    return object.Invalid("norm", "is \"none\"; an output_gate needs a norm");
  }
  RECURVE_ASSIGN_OR_RETURN(
      t.out, tensors.Read(prefix + "o_proj.weight", {hidden, values}));
  return layer;
}

absl::StatusOr<LayerDefinition> ReadLayer(
    const JsonObject& object, int64_t index, const ModelDefinition& model,
    Activation activation, double norm_eps, TensorReader& tensors) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const int64_t hidden = model.hidden_size;
  LayerDefinition layer;
  RECURVE_ASSIGN_OR_RETURN(const std::string mixer,
                           object.StringOneOf("mixer", {"tpa", "linear"}));
  if (mixer == "tpa") {
    RECURVE_ASSIGN_OR_RETURN(
        TpaDefinition tpa,
        ReadTpa(object, prefix + "token_mixer.", hidden, norm_eps, tensors));
    layer.mixer = std::make_shared<TpaLayer>(std::move(tpa));
  } else {
    RECURVE_ASSIGN_OR_RETURN(
        LinearDefinition linear,
        ReadLinear(object, prefix + "token_mixer.", hidden, norm_eps, tensors));
    layer.mixer = std::make_shared<LinearLayer>(std::move(linear));
  }
  RECURVE_ASSIGN_OR_RETURN(
      layer.token_norm,
      ReadRmsNorm(prefix + "token_norm.weight", hidden, norm_eps, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      layer.channel_norm,
      ReadRmsNorm(prefix + "channel_norm.weight", hidden, norm_eps, tensors));
  const std::string glu = prefix + "channel_mixer.";
  RECURVE_ASSIGN_OR_RETURN(
      layer.feed_forward,
      ReadGatedUnit({glu + "w1.weight", glu + "w2.weight", glu + "w3.weight"},
                    activation, model.intermediate_size, hidden, tensors));
  return layer;
}

}  // namespace

bool IsRecurve(const Checkpoint& checkpoint) {
  const auto model_type = checkpoint.config().StringOr("model_type", "");
  return model_type.ok() && *model_type == "recurve";
}

absl::StatusOr<ModelDefinition> ReadRecurve(const Checkpoint& checkpoint,
                                            const std::string& /*variant*/) {
  const JsonObject& config = checkpoint.config();
  RECURVE_RETURN_IF_ERROR(config.CheckNoUnknownKeys(
      {"model_type", "architectures", "vocab_size", "hidden_size",
       "intermediate_size", "num_hidden_layers", "rms_norm_eps", "hidden_act",
       "tie_word_embeddings", "torch_dtype", "dtype", "bos_token_id",
       "eos_token_id", "pad_token_id", "tokenizer", "max_position_embeddings",
       "layers", "transformers_version"}));
  ModelDefinition model;
  model.family = "recurve";
  RECURVE_ASSIGN_OR_RETURN(model.vocab_size,
                           config.Int("vocab_size", 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(model.hidden_size,
                           config.Int("hidden_size", 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(model.intermediate_size,
                           config.Int("intermediate_size", 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(const double norm_eps,
                           config.DoubleOr("rms_norm_eps", 1e-5, 0, 1));
  RECURVE_ASSIGN_OR_RETURN(
      const Activation activation,
      ReadActivation(config, "hidden_act", kPointwise, "silu"));
  RECURVE_ASSIGN_OR_RETURN(
      model.max_position_embeddings,
      config.Int("max_position_embeddings", 1, int64_t{1} << 31));
  RECURVE_ASSIGN_OR_RETURN(model.tokenizer, config.StringOr("tokenizer", ""));
  RECURVE_RETURN_IF_ERROR(
      ReadSpecialTokens(checkpoint, checkpoint.config(), model));
  RECURVE_ASSIGN_OR_RETURN(const std::string tied, ReadTie(config));

  TensorReader tensors(checkpoint);
  const std::vector<int64_t> table = {model.vocab_size, model.hidden_size};
  RECURVE_ASSIGN_OR_RETURN(model.embedding,
                           tensors.Read("model.embed_tokens.weight", table));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<JsonObject> layers,
                           config.ObjectList("layers"));
  RECURVE_ASSIGN_OR_RETURN(const int64_t num_layers,
                           config.Int("num_hidden_layers", 1, 1024));
  if (static_cast<int64_t>(layers.size()) != num_layers) {
    return config.Invalid(
        "layers", absl::StrCat("has ", layers.size(),
                               " entries; num_hidden_layers is ", num_layers));
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    RECURVE_ASSIGN_OR_RETURN(
        LayerDefinition layer,
        ReadLayer(layers[i], i, model, activation, norm_eps, tensors));
    model.layers.push_back(std::move(layer));
  }
  RECURVE_ASSIGN_OR_RETURN(model.final_norm,
                           ReadRmsNorm("model.final_norm.weight",
                                       model.hidden_size, norm_eps, tensors));
  RECURVE_RETURN_IF_ERROR(ReadHead(checkpoint, "model.embed_tokens.weight",
                                   "lm_head.weight", tied, tensors, model));
  RECURVE_RETURN_IF_ERROR(tensors.Finish(model));
  return model;
}

}  // namespace recurve
