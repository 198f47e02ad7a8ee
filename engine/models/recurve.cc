// Recurve's own checkpoint format; described in docs/model-format.md.

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/check_finite.h"
#include "engine/models/families.h"

namespace recurve {
namespace {

constexpr int64_t kMaxDim = 1 << 20;

absl::StatusOr<Activation> ReadActivation(
    const JsonObject& object, const std::string& key,
    const std::optional<std::string>& default_value, bool allow_softmax) {
  static constexpr std::pair<const char*, Activation> kNames[] = {
      {"none", Activation::kNone},        {"silu", Activation::kSilu},
      {"relu", Activation::kRelu},        {"sigmoid", Activation::kSigmoid},
      {"1+elu", Activation::kOnePlusElu}, {"softmax", Activation::kSoftmax}};
  std::vector<std::string> choices;
  for (const auto& [name, activation] : kNames) {
    if (allow_softmax || activation != Activation::kSoftmax)
      choices.emplace_back(name);
  }
  RECURVE_ASSIGN_OR_RETURN(const std::string chosen,
                           object.StringOneOf(key, choices, default_value));
  for (const auto& [name, activation] : kNames) {
    if (chosen == name) return activation;
  }
  return absl::InternalError("activation choices and names disagree");
}

// `types` are the position types this mixer supports.
absl::StatusOr<PositionConfig> ReadPosition(
    const JsonObject& layer, const std::vector<std::string>& types,
    int64_t head_dim) {
  PositionConfig position;
  if (!layer.Has("position")) return position;
  RECURVE_ASSIGN_OR_RETURN(const JsonObject object, layer.Object("position"));
  RECURVE_RETURN_IF_ERROR(object.CheckNoUnknownKeys({"type", "base"}));
  RECURVE_ASSIGN_OR_RETURN(const std::string type,
                           object.StringOneOf("type", types));
  if (type == "none") return position;
  RECURVE_ASSIGN_OR_RETURN(const double base,
                           object.DoubleOr("base", 10000.0, 1.0, 1e12));
  position.type = type == "lrpe_rotate" ? LrpeType::kRotate : LrpeType::kCosine;
  if (position.type == LrpeType::kRotate && head_dim % 2 != 0) {
    return layer.Invalid(
        "head_dim",
        absl::StrCat("is ", head_dim, "; lrpe_rotate needs an even head_dim"));
  }
  position.theta = LrpeTheta(position.type, head_dim, base);
  return position;
}

// Looks tensors up by name and shape and remembers which were asked for.
class TensorReader {
 public:
  explicit TensorReader(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint) {}

  absl::StatusOr<TensorView> Read(const std::string& name,
                                  const std::vector<int64_t>& shape) {
    absl::StatusOr<TensorView> found = checkpoint_.Tensor(name, shape);
    if (absl::IsNotFound(found.status())) {
      return absl::InvalidArgumentError(found.status().message());
    }
    RECURVE_ASSIGN_OR_RETURN(TensorView view, std::move(found));
    RECURVE_RETURN_IF_ERROR(CheckFinite(view, name, checkpoint_.FileOf(name)));
    if (used_.insert(name).second) parameters_ += view.num_elements();
    return view;
  }

  // A matrix whose row count the tensor itself decides.
  absl::StatusOr<TensorView> ReadWithAnyRows(const std::string& name,
                                             int64_t cols) {
    const absl::StatusOr<TensorView> view = checkpoint_.Tensor(name);
    const int64_t rows = view.ok() && view->shape.size() == 2
                             ? std::max<int64_t>(view->shape[0], 1)
                             : 1;
    return Read(name, {rows, cols});
  }

  const std::set<std::string>& used() const { return used_; }
  uint64_t parameters() const { return parameters_; }

 private:
  const Checkpoint& checkpoint_;
  std::set<std::string> used_;
  uint64_t parameters_ = 0;
};

absl::StatusOr<TpaLayer> ReadTpa(const JsonObject& object,
                                 const std::string& prefix, int64_t hidden,
                                 TensorReader& tensors) {
  RECURVE_RETURN_IF_ERROR(
      object.CheckNoUnknownKeys({"mixer", "num_heads", "head_dim", "value_dim",
                                 "q_rank", "kv_rank", "position"}));
  TpaLayer layer;
  TpaShape& s = layer.config.shape;
  RECURVE_ASSIGN_OR_RETURN(s.num_heads, object.Int("num_heads", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(s.head_dim, object.Int("head_dim", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(s.value_dim,
                           object.IntOr("value_dim", s.head_dim, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(s.q_rank, object.Int("q_rank", 1, 256));
  RECURVE_ASSIGN_OR_RETURN(s.kv_rank, object.Int("kv_rank", 1, 64));
  RECURVE_ASSIGN_OR_RETURN(
      layer.config.position,
      ReadPosition(object, {"none", "lrpe_rotate"}, s.head_dim));
  TpaTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(t.a_q,
                           tensors.Read(prefix + "q_head_proj.weight",
                                        {s.q_rank * s.num_heads, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      t.b_q,
      tensors.Read(prefix + "q_proj.weight", {s.q_rank * s.head_dim, hidden}));
  RECURVE_ASSIGN_OR_RETURN(t.a_k,
                           tensors.Read(prefix + "k_head_proj.weight",
                                        {s.kv_rank * s.num_heads, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      t.b_k,
      tensors.Read(prefix + "k_proj.weight", {s.kv_rank * s.head_dim, hidden}));
  RECURVE_ASSIGN_OR_RETURN(t.a_v,
                           tensors.Read(prefix + "v_head_proj.weight",
                                        {s.kv_rank * s.num_heads, hidden}));
  RECURVE_ASSIGN_OR_RETURN(t.b_v,
                           tensors.Read(prefix + "v_proj.weight",
                                        {s.kv_rank * s.value_dim, hidden}));
  RECURVE_ASSIGN_OR_RETURN(t.out,
                           tensors.Read(prefix + "o_proj.weight",
                                        {hidden, s.num_heads * s.value_dim}));
  return layer;
}

absl::StatusOr<LinearConfig> ReadLinearConfig(const JsonObject& object) {
  RECURVE_RETURN_IF_ERROR(object.CheckNoUnknownKeys(
      {"mixer", "num_heads", "head_dim", "value_dim", "q_activation",
       "k_activation", "v_activation", "output_gate", "gate_position",
       "position", "log_decay"}));
  LinearConfig c;
  RECURVE_ASSIGN_OR_RETURN(c.num_heads, object.Int("num_heads", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(c.head_dim, object.Int("head_dim", 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(c.value_dim,
                           object.IntOr("value_dim", c.head_dim, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(
      c.q_activation, ReadActivation(object, "q_activation", "none", true));
  RECURVE_ASSIGN_OR_RETURN(
      c.k_activation, ReadActivation(object, "k_activation", "none", true));
  RECURVE_ASSIGN_OR_RETURN(
      c.v_activation, ReadActivation(object, "v_activation", "none", true));
  RECURVE_ASSIGN_OR_RETURN(
      c.position,
      ReadPosition(object, {"none", "lrpe_rotate", "lrpe_cosine"}, c.head_dim));
  if (object.Has("output_gate")) {
    RECURVE_ASSIGN_OR_RETURN(c.output_gate,
                             ReadActivation(object, "output_gate", std::nullopt,
                                            /*allow_softmax=*/false));
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
  return c;
}

absl::StatusOr<LinearLayer> ReadLinear(const JsonObject& object,
                                       const std::string& prefix,
                                       int64_t hidden, TensorReader& tensors) {
  LinearLayer layer;
  RECURVE_ASSIGN_OR_RETURN(layer.config, ReadLinearConfig(object));
  const int64_t keys = layer.config.num_heads * layer.config.head_dim;
  const int64_t values = layer.config.num_heads * layer.config.value_dim;
  LinearTensors& t = layer.tensors;
  RECURVE_ASSIGN_OR_RETURN(
      t.q, tensors.Read(prefix + "q_proj.weight", {keys, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      t.k, tensors.Read(prefix + "k_proj.weight", {keys, hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      t.v, tensors.Read(prefix + "v_proj.weight", {values, hidden}));
  if (layer.config.output_gate) {
    RECURVE_ASSIGN_OR_RETURN(
        t.gate_in,
        tensors.ReadWithAnyRows(prefix + "output_gate.0.weight", hidden));
    RECURVE_ASSIGN_OR_RETURN(t.gate_out,
                             tensors.Read(prefix + "output_gate.1.weight",
                                          {values, t.gate_in.shape[0]}));
  }
  RECURVE_ASSIGN_OR_RETURN(t.norm,
                           tensors.Read(prefix + "norm.weight", {values}));
  RECURVE_ASSIGN_OR_RETURN(
      t.out, tensors.Read(prefix + "o_proj.weight", {hidden, values}));
  return layer;
}

absl::StatusOr<LayerDefinition> ReadLayer(const JsonObject& object,
                                          int64_t index,
                                          const ModelDefinition& model,
                                          TensorReader& tensors) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  LayerDefinition layer;
  RECURVE_ASSIGN_OR_RETURN(const std::string mixer,
                           object.StringOneOf("mixer", {"tpa", "linear"}));
  if (mixer == "tpa") {
    RECURVE_ASSIGN_OR_RETURN(
        layer.mixer, ReadTpa(object, prefix + "token_mixer.", hidden, tensors));
  } else {
    RECURVE_ASSIGN_OR_RETURN(
        layer.mixer,
        ReadLinear(object, prefix + "token_mixer.", hidden, tensors));
  }
  RECURVE_ASSIGN_OR_RETURN(
      layer.token_norm, tensors.Read(prefix + "token_norm.weight", {hidden}));
  RECURVE_ASSIGN_OR_RETURN(
      layer.channel_norm,
      tensors.Read(prefix + "channel_norm.weight", {hidden}));
  const std::string glu = prefix + "channel_mixer.";
  RECURVE_ASSIGN_OR_RETURN(layer.w1,
                           tensors.Read(glu + "w1.weight", {inner, hidden}));
  RECURVE_ASSIGN_OR_RETURN(layer.w2,
                           tensors.Read(glu + "w2.weight", {inner, hidden}));
  RECURVE_ASSIGN_OR_RETURN(layer.w3,
                           tensors.Read(glu + "w3.weight", {hidden, inner}));
  return layer;
}

// End-of-sequence ids: generation_config.json, where present, knows best.
absl::Status ReadSpecialTokens(const Checkpoint& checkpoint,
                               ModelDefinition& model) {
  const JsonObject& config = checkpoint.config();
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
  }
  return absl::OkStatus();
}

}  // namespace

bool IsRecurve(const Checkpoint& checkpoint) {
  const auto model_type = checkpoint.config().StringOr("model_type", "");
  return model_type.ok() && *model_type == "recurve";
}

absl::StatusOr<ModelDefinition> ReadRecurve(const Checkpoint& checkpoint) {
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
  RECURVE_ASSIGN_OR_RETURN(model.norm_eps,
                           config.DoubleOr("rms_norm_eps", 1e-5, 0, 1));
  RECURVE_ASSIGN_OR_RETURN(
      model.channel_activation,
      ReadActivation(config, "hidden_act", "silu", /*allow_softmax=*/false));
  RECURVE_ASSIGN_OR_RETURN(
      model.max_position_embeddings,
      config.Int("max_position_embeddings", 1, int64_t{1} << 31));
  RECURVE_ASSIGN_OR_RETURN(model.tokenizer, config.StringOr("tokenizer", ""));
  RECURVE_RETURN_IF_ERROR(ReadSpecialTokens(checkpoint, model));
  RECURVE_ASSIGN_OR_RETURN(const bool tied,
                           config.BoolOr("tie_word_embeddings", false));

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
    RECURVE_ASSIGN_OR_RETURN(LayerDefinition layer,
                             ReadLayer(layers[i], i, model, tensors));
    model.layers.push_back(std::move(layer));
  }
  RECURVE_ASSIGN_OR_RETURN(
      model.final_norm,
      tensors.Read("model.final_norm.weight", {model.hidden_size}));
  model.head = model.embedding;
  if (!tied) {
    RECURVE_ASSIGN_OR_RETURN(model.head, tensors.Read("lm_head.weight", table));
  }
  RECURVE_RETURN_IF_ERROR(checkpoint.CheckAllUsed(tensors.used()));
  model.parameters = tensors.parameters();
  model.fingerprint = checkpoint.Fingerprint();
  return model;
}

}  // namespace recurve
