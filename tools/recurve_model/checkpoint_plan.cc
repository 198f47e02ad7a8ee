#include "tools/recurve_model/checkpoint_plan.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tools/recurve_model/planner.h"

namespace recurve {
namespace {

// A mean over `rank` products is smaller by a factor of sqrt(rank).
double FactorGain(int64_t rank) { return std::sqrt(static_cast<double>(rank)); }

void PlanT6Layer(const T6Sizes& s, int64_t index, Planner* planner) {
  const std::string layer = absl::StrCat("transformer.h.", index, ".");
  const std::string qkv = layer + "attn.c_qkv.";
  const double residual = ResidualGain(s.layers);
  planner->Matrix(qkv + "W_A_q", s.heads * s.q_rank, s.hidden,
                  FactorGain(s.q_rank));
  planner->Matrix(qkv + "W_A_k", s.heads * s.rank, s.hidden,
                  FactorGain(s.rank));
  planner->Matrix(qkv + "W_A_v", s.heads * s.rank, s.hidden,
                  FactorGain(s.rank));
  planner->Matrix(qkv + "W_B_q", s.q_rank * s.head_dim, s.hidden);
  planner->Matrix(qkv + "W_B_k", s.rank * s.head_dim, s.hidden);
  planner->Matrix(qkv + "W_B_v", s.rank * s.head_dim, s.hidden);
  planner->Matrix(layer + "attn.c_proj", s.hidden, s.heads * s.head_dim,
                  residual);
  const auto inner =
      static_cast<int64_t>(8.0 / 3.0 * static_cast<double>(s.hidden));
  planner->Matrix(layer + "mlp.c_fc1", inner, s.hidden);
  planner->Matrix(layer + "mlp.c_fc2", inner, s.hidden);
  planner->Matrix(layer + "mlp.c_proj", s.hidden, inner, residual);
}

bool IsTpa(const RecurveSizes& s, int64_t index) {
  return s.tpa_every > 0 && index % s.tpa_every == s.tpa_every - 1;
}

nlohmann::ordered_json RecurveLayerConfig(const RecurveSizes& s,
                                          int64_t index) {
  if (IsTpa(s, index)) {
    return {{"mixer", "tpa"},
            {"num_heads", s.tpa_heads},
            {"head_dim", s.head_dim},
            {"q_rank", s.q_rank},
            {"kv_rank", s.kv_rank},
            {"position", {{"type", "lrpe_rotate"}, {"base", 500000.0}}}};
  }
  // Memory lengths of the heads: from three tokens to thousands.
  std::vector<double> log_decay;
  for (int64_t head = 0; head < s.linear_heads; ++head) {
    log_decay.push_back(
        -std::exp2(-1.5 - static_cast<double>(head) * 10 /
                              static_cast<double>(s.linear_heads)));
  }
  return {{"mixer", "linear"},      {"num_heads", s.linear_heads},
          {"head_dim", s.head_dim}, {"q_activation", "silu"},
          {"k_activation", "silu"}, {"output_gate", "sigmoid"},
          {"gate_position", "pre"}, {"log_decay", log_decay}};
}

void PlanRecurveLayer(const RecurveSizes& s, int64_t index, Planner* planner) {
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const std::string mixer = layer + "token_mixer.";
  const double residual = ResidualGain(s.layers);
  int64_t width = 0;
  if (IsTpa(s, index)) {
    width = s.tpa_heads * s.head_dim;
    const auto factors = [&](const char* name, int64_t rank) {
      planner->Matrix(mixer + name + "_head_proj", rank * s.tpa_heads, s.hidden,
                      FactorGain(rank));
      planner->Matrix(mixer + name + "_proj", rank * s.head_dim, s.hidden);
    };
    factors("q", s.q_rank);
    factors("k", s.kv_rank);
    factors("v", s.kv_rank);
  } else {
    width = s.linear_heads * s.head_dim;
    planner->Matrix(mixer + "q_proj", width, s.hidden);
    planner->Matrix(mixer + "k_proj", width, s.hidden);
    planner->Matrix(mixer + "v_proj", width, s.hidden);
    planner->Matrix(mixer + "output_gate.0", s.gate_rank, s.hidden);
    planner->Matrix(mixer + "output_gate.1", width, s.gate_rank);
    planner->Norm(mixer + "norm", width);
  }
  planner->Matrix(mixer + "o_proj", s.hidden, width, residual);
  planner->Norm(layer + "token_norm", s.hidden);
  planner->Norm(layer + "channel_norm", s.hidden);
  planner->Matrix(layer + "channel_mixer.w1", s.inner, s.hidden);
  planner->Matrix(layer + "channel_mixer.w2", s.inner, s.hidden);
  planner->Matrix(layer + "channel_mixer.w3", s.hidden, s.inner, residual);
}

}  // namespace

int64_t PlannedTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

int64_t CheckpointPlan::parameters() const {
  int64_t count = 0;
  for (const PlannedTensor& tensor : tensors) count += tensor.num_elements();
  return count;
}

CheckpointPlan PlanT6(const T6Sizes& s) {
  CheckpointPlan plan;
  plan.config = {{"architectures", {"GPT"}},
                 {"model_type", "gpt2"},
                 {"t6_variant", "T6"},
                 {"n_layer", s.layers},
                 {"n_head", s.heads},
                 {"head_dim", s.head_dim},
                 {"n_embd", s.hidden},
                 {"rank", s.rank},
                 {"q_rank", s.q_rank},
                 {"block_size", s.max_positions},
                 {"vocab_size", s.vocab},
                 {"using_groupnorm", false},
                 {"bias", false},
                 {"dropout", 0.0},
                 {"scale_attn_by_inverse_layer_idx", true}};
  Planner planner;
  // Also the head. Small compared to what the layers add, so that the head does
  // not merely reproduce the last token.
  planner.Matrix("transformer.wte", s.vocab, s.hidden, kLogitDeviation);
  for (int64_t i = 0; i < s.layers; ++i) PlanT6Layer(s, i, &planner);
  plan.tensors = planner.Take();
  return plan;
}

CheckpointPlan PlanRecurve(const RecurveSizes& s) {
  CheckpointPlan plan;
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < s.layers; ++i)
    layers.push_back(RecurveLayerConfig(s, i));
  // No end-of-sequence token: a load test sets its own output lengths.
  plan.config = {{"model_type", "recurve"},
                 {"vocab_size", s.vocab},
                 {"hidden_size", s.hidden},
                 {"intermediate_size", s.inner},
                 {"num_hidden_layers", s.layers},
                 {"max_position_embeddings", s.max_positions},
                 {"rms_norm_eps", 1e-5},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", false},
                 {"tokenizer", "bytes"},
                 {"bos_token_id", 256},
                 {"layers", layers}};
  Planner planner;
  planner.Table("model.embed_tokens", s.vocab, s.hidden, 1);
  for (int64_t i = 0; i < s.layers; ++i) PlanRecurveLayer(s, i, &planner);
  planner.Norm("model.final_norm", s.hidden);
  planner.Matrix("lm_head", s.vocab, s.hidden, kLogitDeviation);
  plan.tensors = planner.Take();
  return plan;
}

}  // namespace recurve
