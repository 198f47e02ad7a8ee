#include "tools/recurve_model/hybrid_plan.h"

#include "absl/strings/str_cat.h"
#include "tools/recurve_model/planner.h"

namespace recurve {
namespace {

constexpr int64_t kConvWidth = 4;

bool IsFull(int64_t layer) { return layer % 4 == 3; }

nlohmann::ordered_json LayerTypes(int64_t layers) {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < layers; ++i) {
    types.push_back(IsFull(i) ? "full_attention" : "linear_attention");
  }
  return types;
}

// No end-of-sequence token: a load test sets its own output lengths.
nlohmann::ordered_json DeltaConfig(const DeltaSizes& s) {
  return {{"attention_bias", false},
          {"head_dim", s.head_dim},
          {"hidden_act", "silu"},
          {"hidden_size", s.hidden},
          {"intermediate_size", s.inner},
          {"layer_types", LayerTypes(s.layers)},
          {"linear_conv_kernel_dim", kConvWidth},
          {"linear_key_head_dim", s.key_dim},
          {"linear_num_key_heads", s.key_heads},
          {"linear_num_value_heads", s.value_heads},
          {"linear_value_head_dim", s.value_dim},
          {"max_position_embeddings", s.max_positions},
          {"num_attention_heads", s.heads},
          {"num_hidden_layers", s.layers},
          {"num_key_value_heads", s.kv_heads},
          {"rms_norm_eps", 1e-6},
          {"tie_word_embeddings", s.tied},
          {"vocab_size", s.vocab}};
}

// Memory of the heads from ten tokens to thousands, as in trained models.
void PlanGates(const std::string& prefix, int64_t heads, Planner* planner) {
  planner->Add({prefix + "A_log", {heads}, 0.7, 0.8});
  planner->Add({prefix + "dt_bias", {heads}, -4, 1});
}

void PlanConv(const std::string& name, int64_t channels, Planner* planner) {
  planner->Add({name + ".weight", {channels, 1, kConvWidth}, 0, 0.5});
}

void PlanUnit(const std::string& prefix, int64_t hidden, int64_t inner,
              double residual, Planner* planner) {
  planner->Matrix(prefix + "gate_proj", inner, hidden);
  planner->Matrix(prefix + "up_proj", inner, hidden);
  planner->Matrix(prefix + "down_proj", hidden, inner, residual);
}

void PlanQkv(const std::string& prefix, int64_t q_rows, int64_t kv_rows,
             int64_t hidden, Planner* planner) {
  planner->Matrix(prefix + "q_proj", q_rows, hidden);
  planner->Matrix(prefix + "k_proj", kv_rows, hidden);
  planner->Matrix(prefix + "v_proj", kv_rows, hidden);
}

void PlanQwenLayer(const DeltaSizes& s, const std::string& layer, bool full,
                   Planner* planner) {
  const double residual = ResidualGain(s.layers);
  if (full) {
    const std::string mixer = layer + "self_attn.";
    // Queries and gates.
    PlanQkv(mixer, 2 * s.heads * s.head_dim, s.kv_heads * s.head_dim, s.hidden,
            planner);
    planner->Norm(mixer + "q_norm", s.head_dim, 0);
    planner->Norm(mixer + "k_norm", s.head_dim, 0);
    planner->Matrix(mixer + "o_proj", s.hidden, s.heads * s.head_dim, residual);
  } else {
    const std::string mixer = layer + "linear_attn.";
    const int64_t values = s.value_heads * s.value_dim;
    const int64_t channels = 2 * s.key_heads * s.key_dim + values;
    planner->Matrix(mixer + "in_proj_qkv", channels, s.hidden);
    planner->Matrix(mixer + "in_proj_z", values, s.hidden);
    planner->Matrix(mixer + "in_proj_b", s.value_heads, s.hidden);
    planner->Matrix(mixer + "in_proj_a", s.value_heads, s.hidden);
    PlanConv(mixer + "conv1d", channels, planner);
    PlanGates(mixer, s.value_heads, planner);
    planner->Norm(mixer + "norm", s.value_dim);
    planner->Matrix(mixer + "out_proj", s.hidden, values, residual);
  }
  planner->Norm(layer + "input_layernorm", s.hidden, 0);
  planner->Norm(layer + "post_attention_layernorm", s.hidden, 0);
  PlanUnit(layer + "mlp.", s.hidden, s.inner, residual, planner);
}

void PlanOlmoLayer(const DeltaSizes& s, const std::string& layer, bool full,
                   Planner* planner) {
  const double residual = ResidualGain(s.layers);
  if (full) {
    const std::string mixer = layer + "self_attn.";
    const int64_t queries = s.heads * s.head_dim;
    const int64_t keys = s.kv_heads * s.head_dim;
    PlanQkv(mixer, queries, keys, s.hidden, planner);
    planner->Norm(mixer + "q_norm", queries);
    planner->Norm(mixer + "k_norm", keys);
    planner->Matrix(mixer + "o_proj", s.hidden, queries);
    // Behind each part: they decide what it adds.
    for (const char* norm :
         {"post_attention_layernorm", "post_feedforward_layernorm"}) {
      planner->Norm(layer + norm, s.hidden, residual);
    }
    PlanUnit(layer + "mlp.", s.hidden, s.inner, 1, planner);
    return;
  }
  const std::string mixer = layer + "linear_attn.";
  const int64_t keys = s.key_heads * s.key_dim;
  const int64_t values = s.value_heads * s.value_dim;
  planner->Matrix(mixer + "q_proj", keys, s.hidden);
  planner->Matrix(mixer + "k_proj", keys, s.hidden);
  planner->Matrix(mixer + "v_proj", values, s.hidden);
  PlanConv(mixer + "q_conv1d", keys, planner);
  PlanConv(mixer + "k_conv1d", keys, planner);
  PlanConv(mixer + "v_conv1d", values, planner);
  planner->Matrix(mixer + "g_proj", values, s.hidden);
  planner->Matrix(mixer + "b_proj", s.value_heads, s.hidden);
  planner->Matrix(mixer + "a_proj", s.value_heads, s.hidden);
  PlanGates(mixer, s.value_heads, planner);
  planner->Norm(mixer + "o_norm", s.value_dim);
  planner->Matrix(mixer + "o_proj", s.hidden, values, residual);
  planner->Norm(layer + "attention_layer_norm", s.hidden);
  planner->Norm(layer + "feedforward_layer_norm", s.hidden);
  PlanUnit(layer + "mlp.", s.hidden, s.inner, residual, planner);
}

void PlanSalaLayer(const SalaSizes& s, const std::string& layer, bool full,
                   Planner* planner) {
  const std::string mixer = layer + "self_attn.";
  const int64_t width = s.heads * s.head_dim;
  // The factor of branches, 1.4 / sqrt(layers), does the rest.
  const double residual = 0.5;
  PlanQkv(mixer, width, full ? s.kv_heads * s.head_dim : width, s.hidden,
          planner);
  if (full) {
    planner->Matrix(mixer + "o_gate", width, s.hidden);
  } else {
    planner->Norm(mixer + "q_norm", s.head_dim);
    planner->Norm(mixer + "k_norm", s.head_dim);
    planner->Norm(mixer + "o_norm", width);
    planner->Matrix(mixer + "z_proj", width, s.hidden);
  }
  planner->Matrix(mixer + "o_proj", s.hidden, width, residual);
  planner->Norm(layer + "input_layernorm", s.hidden);
  planner->Norm(layer + "post_attention_layernorm", s.hidden);
  PlanUnit(layer + "mlp.", s.hidden, s.inner, residual, planner);
}

}  // namespace

CheckpointPlan PlanQwen35(const DeltaSizes& s) {
  CheckpointPlan plan;
  nlohmann::ordered_json config = {{"architectures", {"Qwen3_5ForCausalLM"}},
                                   {"model_type", "qwen3_5_text"},
                                   {"attn_output_gate", true},
                                   {"mamba_ssm_dtype", "float32"},
                                   {"rope_parameters",
                                    {{"partial_rotary_factor", 0.25},
                                     {"rope_theta", 10000000.0},
                                     {"rope_type", "default"}}}};
  config.update(DeltaConfig(s));
  plan.config = std::move(config);
  Planner planner;
  // If it is also the head: small compared to what the layers add, so that the
  // head does not merely reproduce the last token.
  if (s.tied) {
    planner.Matrix("model.embed_tokens", s.vocab, s.hidden, kLogitDeviation);
  } else {
    planner.Table("model.embed_tokens", s.vocab, s.hidden, 1);
  }
  for (int64_t i = 0; i < s.layers; ++i) {
    PlanQwenLayer(s, absl::StrCat("model.layers.", i, "."), IsFull(i),
                  &planner);
  }
  planner.Norm("model.norm", s.hidden, 0);
  if (!s.tied) {
    planner.Matrix("lm_head", s.vocab, s.hidden, kLogitDeviation);
  }
  plan.tensors = planner.Take();
  return plan;
}

CheckpointPlan PlanOlmoHybrid(const DeltaSizes& s) {
  CheckpointPlan plan;
  nlohmann::ordered_json config = {
      {"architectures", {"OlmoHybridForCausalLM"}},
      {"model_type", "olmo_hybrid"},
      {"linear_allow_neg_eigval", true},
      {"rope_parameters", {{"rope_theta", nullptr}, {"rope_type", "default"}}}};
  config.update(DeltaConfig(s));
  plan.config = std::move(config);
  Planner planner;
  planner.Table("model.embed_tokens", s.vocab, s.hidden, 1);
  for (int64_t i = 0; i < s.layers; ++i) {
    PlanOlmoLayer(s, absl::StrCat("model.layers.", i, "."), IsFull(i),
                  &planner);
  }
  planner.Norm("model.norm", s.hidden);
  planner.Matrix("lm_head", s.vocab, s.hidden, kLogitDeviation);
  plan.tensors = planner.Take();
  return plan;
}

CheckpointPlan PlanMiniCpmSala(const SalaSizes& s) {
  CheckpointPlan plan;
  const auto is_full = [&](int64_t i) {
    const bool inner =
        s.layers == 32 && (i == 9 || i == 16 || i == 17 || i == 22 || i >= 29);
    return i == 0 || i == s.layers - 1 || inner;
  };
  nlohmann::ordered_json mixers = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < s.layers; ++i) {
    mixers.push_back(is_full(i) ? "minicpm4" : "lightning-attn");
  }
  constexpr double kBase = 256;  // dim_model_base
  plan.config = {{"architectures", {"MiniCPMSALAForCausalLM"}},
                 {"model_type", "minicpm_sala"},
                 {"attention_bias", false},
                 {"attn_use_output_gate", true},
                 {"attn_use_rope", false},
                 {"dim_model_base", kBase},
                 {"head_dim", s.head_dim},
                 {"hidden_act", "silu"},
                 {"hidden_size", s.hidden},
                 {"intermediate_size", s.inner},
                 {"lightning_head_dim", s.head_dim},
                 {"lightning_nh", s.heads},
                 {"lightning_nkv", s.heads},
                 {"lightning_scale", "1/sqrt(d)"},
                 {"lightning_use_rope", true},
                 {"max_position_embeddings", s.max_positions},
                 {"mixer_types", mixers},
                 {"num_attention_heads", s.heads},
                 {"num_hidden_layers", s.layers},
                 {"num_key_value_heads", s.kv_heads},
                 {"qk_norm", true},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0},
                 {"scale_depth", 1.4},
                 {"scale_emb", 12},
                 {"sparse_config", {{"dense_len", 8192}}},
                 {"tie_word_embeddings", false},
                 {"use_output_gate", true},
                 {"use_output_norm", true},
                 {"vocab_size", s.vocab}};
  Planner planner;
  planner.Table("model.embed_tokens", s.vocab, s.hidden, 1.0 / 12);
  for (int64_t i = 0; i < s.layers; ++i) {
    PlanSalaLayer(s, absl::StrCat("model.layers.", i, "."), is_full(i),
                  &planner);
  }
  planner.Norm("model.norm", s.hidden);
  // The head reads what dim_model_base makes smaller.
  planner.Matrix("lm_head", s.vocab, s.hidden,
                 kLogitDeviation * static_cast<double>(s.hidden) / kBase);
  plan.tensors = planner.Take();
  return plan;
}

}  // namespace recurve
