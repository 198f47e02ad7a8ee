// Checkpoints of github.com/tensorgi/T6; described in docs/families.md.

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/models/families.h"
#include "engine/models/family_reader.h"
#include "engine/models/linear/linear_layer.h"
#include "engine/models/tpa/tpa_layer.h"

namespace recurve {
namespace {

constexpr double kRopeBase = 10000.0;  // not configurable there
constexpr double kSubLayerNormEps = 1e-5;

// The authors' model files. Rotating the keys (ropek) or their factors is the
// same function.
struct Variant {
  const char* name;
  bool kv_only;  // queries are projected directly
  bool partial_rope;
  bool decay;
  bool linear_attention;
};
constexpr Variant kVariants[] = {
    {"T6", false, false, false, false},
    {"T6_kvonly", true, false, false, false},
    {"T6_ropek", false, false, false, false},
    {"T6_kvonly_ropek", true, false, false, false},
    {"T6_partialrope", false, true, false, false},
    {"T6_kvonly_partialrope", true, true, false, false},
    {"T6_partialrope_decay", false, true, true, false},
    {"T6_kvonly_partialrope_decay", true, true, true, false},
    {"T6_linearattn_partialrope_decay", false, true, true, true},
    {"T6_linearattn_kvonly_partialrope_decay", true, true, true, true},
};

std::string LayerPrefix(int64_t layer) {
  return absl::StrCat("transformer.h.", layer, ".");
}

absl::StatusOr<Variant> ChooseVariant(const Checkpoint& checkpoint,
                                      const std::string& option) {
  const JsonObject& config = checkpoint.config();
  const bool kv_only = checkpoint.Has(LayerPrefix(0) + "attn.c_qkv.c_q.weight");
  RECURVE_ASSIGN_OR_RETURN(std::string name, config.StringOr("t6_variant", ""));
  std::string source = absl::StrCat(config.file(), ": t6_variant");
  if (!option.empty()) {
    name = option;
    source = "--model-variant";
  }
  if (name.empty()) {
    for (const char* key : {"rope_partial_factor", "rope_decay_base"}) {
      if (config.Has(key)) {
        return config.Invalid(
            key,
            "is given, but tensor names do not tell which variant of T6 the "
            "model is; set t6_variant in config.json or --model-variant");
      }
    }
    return kv_only ? kVariants[1] : kVariants[0];
  }
  std::vector<std::string> names;
  for (const Variant& variant : kVariants) {
    names.emplace_back(variant.name);
    if (name != variant.name) continue;
    if (variant.kv_only != kv_only) {
      return absl::InvalidArgumentError(absl::StrCat(
          source, " is \"", name, "\", whose queries are ",
          variant.kv_only ? "whole (attn.c_qkv.c_q)"
                          : "factored (attn.c_qkv.W_A_q)",
          "; the tensors in ", checkpoint.FileOf(""), " show the other"));
    }
    return variant;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      source, " is \"", name, "\"; supported: ", absl::StrJoin(names, ", ")));
}

// The number of rotating features, the first of each head, with the authors'
// rounding.
absl::StatusOr<int64_t> RotaryFeatures(const JsonObject& config,
                                       const Variant& variant,
                                       int64_t head_dim) {
  if (head_dim % 2 != 0) {
    return config.Invalid(
        "head_dim", absl::StrCat("is ", head_dim, "; expected an even number"));
  }
  if (!variant.partial_rope) return head_dim;
  RECURVE_ASSIGN_OR_RETURN(
      const double factor,
      config.DoubleOr("rope_partial_factor", 1.0 / 3, 0, 1));
  return static_cast<int64_t>(static_cast<double>(head_dim) * factor) / 2 * 2;
}

// Tables as the authors' code computes them: angles in float32, cos and sin
// rounded to bfloat16 unless they decay. The rotation is by minus the angle.
absl::StatusOr<PositionConfig> ReadPosition(const JsonObject& config,
                                            const Variant& variant,
                                            int64_t head_dim, int64_t rotary) {
  PositionConfig position;
  position.type = LrpeType::kRotate;
  position.theta.assign(head_dim / 2, 0.0);
  for (int64_t i = 0; i < rotary / 2; ++i) {
    const float exponent =
        static_cast<float>(2 * i) / static_cast<float>(rotary);
    position.theta[i] =
        -(1.0f / static_cast<float>(
                     std::pow(kRopeBase, static_cast<double>(exponent))));
  }
  position.float32_angles = true;
  position.bfloat16_tables = !variant.decay;
  if (variant.decay) {
    RECURVE_ASSIGN_OR_RETURN(
        const double base, config.DoubleOr("rope_decay_base", 0.999, 1e-6, 1));
    position.log_decay = static_cast<float>(
        std::log(static_cast<double>(static_cast<float>(base))));
  }
  return position;
}

// T6 stores A head-major: row h·R + r.
std::vector<int32_t> RankMajor(int64_t num_heads, int64_t rank) {
  std::vector<int32_t> order;
  for (int64_t r = 0; r < rank; ++r) {
    for (int64_t h = 0; h < num_heads; ++h)
      order.push_back(static_cast<int32_t>(h * rank + r));
  }
  return order;
}

// In T6 features i and i + rotary/2 form a pair; here i and i + D/2 do.
// Products of queries and keys do not change if both are reordered alike.
std::vector<int32_t> PairHalves(int64_t vectors, int64_t dim, int64_t rotary) {
  std::vector<int32_t> order;
  if (rotary == dim) return order;
  const int64_t passing = (dim - rotary) / 2;  // in each half
  for (int64_t v = 0; v < vectors; ++v) {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t i = 0; i < rotary / 2; ++i)
        order.push_back(
            static_cast<int32_t>(v * dim + half * (rotary / 2) + i));
      for (int64_t i = 0; i < passing; ++i)
        order.push_back(
            static_cast<int32_t>(v * dim + rotary + half * passing + i));
    }
  }
  return order;
}

struct Attention {
  Variant variant;
  TpaShape shape;
  PositionConfig position;
  int64_t rotary = 0;
  bool groupnorm = false;
};

absl::StatusOr<Attention> ReadAttention(const Checkpoint& checkpoint,
                                        const std::string& option) {
  const JsonObject& config = checkpoint.config();
  Attention a;
  RECURVE_ASSIGN_OR_RETURN(a.variant, ChooseVariant(checkpoint, option));
  RECURVE_ASSIGN_OR_RETURN(a.shape.num_heads,
                           config.IntOr("n_head", 22, 1, 1024));
  RECURVE_ASSIGN_OR_RETURN(a.shape.head_dim,
                           config.IntOr("head_dim", 64, 1, 1024));
  a.shape.value_dim = a.shape.head_dim;
  RECURVE_ASSIGN_OR_RETURN(a.shape.q_rank, config.IntOr("q_rank", 6, 1, 256));
  if (a.variant.kv_only) a.shape.q_rank = 0;
  RECURVE_ASSIGN_OR_RETURN(a.shape.kv_rank, config.IntOr("rank", 2, 1, 64));
  RECURVE_ASSIGN_OR_RETURN(a.rotary,
                           RotaryFeatures(config, a.variant, a.shape.head_dim));
  RECURVE_ASSIGN_OR_RETURN(
      a.position, ReadPosition(config, a.variant, a.shape.head_dim, a.rotary));
  // A missing key has the default of the authors' model file, which the tensors
  // identify.
  RECURVE_ASSIGN_OR_RETURN(
      a.groupnorm,
      config.BoolOr("using_groupnorm",
                    checkpoint.Has(LayerPrefix(0) + "attn.subln.weight")));
  return a;
}

// Factors of queries (`rank` 0: direct), keys or values.
absl::StatusOr<FactorTensors> ReadFactors(const std::string& prefix, char which,
                                          const Attention& attention,
                                          int64_t rank, int64_t hidden,
                                          TensorReader& tensors) {
  const TpaShape& s = attention.shape;
  const int64_t vectors = rank > 0 ? rank : s.num_heads;
  FactorTensors factors;
  if (rank > 0) {
    RECURVE_ASSIGN_OR_RETURN(
        const TensorView a,
        tensors.Read(
            absl::StrCat(prefix, "W_A_", std::string(1, which), ".weight"),
            {rank * s.num_heads, hidden}));
    factors.a = {a, RankMajor(s.num_heads, rank)};
  }
  RECURVE_ASSIGN_OR_RETURN(
      const TensorView b,
      tensors.Read(rank > 0 ? absl::StrCat(prefix, "W_B_",
                                           std::string(1, which), ".weight")
                            : prefix + "c_q.weight",
                   {vectors * s.head_dim, hidden}));
  factors.b = {b, which == 'v'
                      ? std::vector<int32_t>()
                      : PairHalves(vectors, s.head_dim, attention.rotary)};
  return factors;
}

absl::StatusOr<LayerDefinition> ReadLayer(int64_t index,
                                          const Attention& attention,
                                          const ModelDefinition& model,
                                          TensorReader& tensors) {
  const TpaShape& s = attention.shape;
  const std::string prefix = LayerPrefix(index);
  const std::string qkv = prefix + "attn.c_qkv.";
  const int64_t hidden = model.hidden_size;
  const int64_t inner = model.intermediate_size;
  LayerDefinition layer;
  layer.token_norm.eps = std::numeric_limits<float>::epsilon();
  layer.channel_norm = layer.token_norm;

  FactorTensors q;
  FactorTensors k;
  FactorTensors v;
  RECURVE_ASSIGN_OR_RETURN(
      q, ReadFactors(qkv, 'q', attention, s.q_rank, hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      k, ReadFactors(qkv, 'k', attention, s.kv_rank, hidden, tensors));
  RECURVE_ASSIGN_OR_RETURN(
      v, ReadFactors(qkv, 'v', attention, s.kv_rank, hidden, tensors));
  std::optional<NormDefinition> norm;
  if (attention.groupnorm) {
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<float> weight,
        tensors.ReadVector(prefix + "attn.subln.weight", s.head_dim));
    norm = NormOfHeads(s.num_heads, kSubLayerNormEps, weight);
  }
  RECURVE_ASSIGN_OR_RETURN(const TensorView out,
                           tensors.Read(prefix + "attn.c_proj.weight",
                                        {hidden, s.num_heads * s.head_dim}));
  if (attention.variant.linear_attention) {
    LinearDefinition mixer;
    mixer.config.num_heads = s.num_heads;
    mixer.config.head_dim = s.head_dim;
    mixer.config.value_dim = s.value_dim;
    mixer.config.q_rank = s.q_rank;
    mixer.config.kv_rank = s.kv_rank;
    mixer.config.position = attention.position;
    mixer.config.log_decay.assign(s.num_heads, 0.0);
    mixer.tensors = {std::move(q), std::move(k), std::move(v), {}, {}, out};
    mixer.norm = std::move(norm);
    layer.mixer = std::make_shared<LinearLayer>(std::move(mixer));
  } else {
    layer.mixer = std::make_shared<TpaLayer>(
        TpaDefinition{{s, attention.position, Activation::kNone},
                      {std::move(q), std::move(k), std::move(v), out},
                      std::move(norm)});
  }
  const std::string mlp = prefix + "mlp.";
  RECURVE_ASSIGN_OR_RETURN(
      layer.feed_forward,
      ReadGatedUnit(
          {mlp + "c_fc1.weight", mlp + "c_fc2.weight", mlp + "c_proj.weight"},
          Activation::kSilu, inner, hidden, tensors));
  return layer;
}

}  // namespace

bool IsT6(const Checkpoint& checkpoint) {
  const std::string qkv = LayerPrefix(0) + "attn.c_qkv.";
  return checkpoint.Has(qkv + "W_A_k.weight") ||
         checkpoint.Has(qkv + "W_B_k.weight");
}

absl::StatusOr<ModelDefinition> ReadT6(const Checkpoint& checkpoint,
                                       const std::string& variant) {
  const JsonObject& config = checkpoint.config();
  ModelDefinition model;
  model.family = "t6";
  RECURVE_ASSIGN_OR_RETURN(model.vocab_size,
                           config.IntOr("vocab_size", 50304, 1, kMaxDim));
  RECURVE_ASSIGN_OR_RETURN(model.hidden_size,
                           config.IntOr("n_embd", 768, 1, kMaxDim));
  // The authors' width is floor(8/3 C), in integers as in doubles.
  model.intermediate_size = 8 * model.hidden_size / 3;
  RECURVE_ASSIGN_OR_RETURN(
      model.max_position_embeddings,
      config.IntOr("block_size", 1024, 1, int64_t{1} << 31));
  RECURVE_RETURN_IF_ERROR(
      ReadSpecialTokens(checkpoint, checkpoint.config(), model));
  RECURVE_ASSIGN_OR_RETURN(const Attention attention,
                           ReadAttention(checkpoint, variant));
  model.variant = attention.variant.name;
  RECURVE_ASSIGN_OR_RETURN(const std::string stated,
                           config.StringOr("t6_variant", ""));
  if (variant.empty() && stated.empty()) {
    model.remarks.push_back(absl::StrCat(
        "assumed to be ", model.variant,
        ", since neither t6_variant in config.json nor --model-variant says; "
        "tensors do not tell it from the partialrope, decay and linearattn "
        "variants, with which every token would be wrong"));
  } else if (!variant.empty() && !stated.empty() && variant != stated) {
    model.remarks.push_back(
        absl::StrCat("--model-variant ", Quote(variant), " in place of ",
                     Quote(stated), ", which ", config.file(),
                     " has as t6_variant: with a wrong one every token would "
                     "be wrong"));
  }
  RECURVE_ASSIGN_OR_RETURN(const int64_t num_layers,
                           config.IntOr("n_layer", 12, 1, 1024));
  TensorReader tensors(checkpoint);
  const std::string embedding = "transformer.wte.weight";
  RECURVE_ASSIGN_OR_RETURN(
      model.embedding,
      tensors.Read(embedding, {model.vocab_size, model.hidden_size}));
  // Published files store it under both names.
  RECURVE_RETURN_IF_ERROR(ReadHead(checkpoint, embedding, "lm_head.weight",
                                   /*tied=*/"T6 ties the two", tensors, model));
  for (int64_t i = 0; i < num_layers; ++i) {
    RECURVE_ASSIGN_OR_RETURN(LayerDefinition layer,
                             ReadLayer(i, attention, model, tensors));
    model.layers.push_back(std::move(layer));
  }
  model.final_norm.eps = std::numeric_limits<float>::epsilon();
  RECURVE_RETURN_IF_ERROR(tensors.Finish(model));
  return model;
}

}  // namespace recurve
