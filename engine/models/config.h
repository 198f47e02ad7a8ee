#ifndef RECURVE_ENGINE_MODELS_CONFIG_H_
#define RECURVE_ENGINE_MODELS_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/tensor_view.h"
#include "kernels/common/activation.h"
#include "kernels/lrpe/lrpe.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// What a model is, in the terms all families share. A family reads its own
// config keys and tensor names and fills these in; nothing after it knows which
// family a model came from.

// Position encoding of queries and keys.
struct PositionConfig {
  LrpeType type = LrpeType::kNone;
  std::vector<double> theta;  // [LrpeAngles(type, head_dim)] radians a position
};

// Tensor product attention; maths in kernels/tpa/tpa.h.
struct TpaConfig {
  TpaShape shape;
  PositionConfig position;  // kNone or kRotate
};

// Linear attention; maths in kernels/linear_attn/linear_attn.h.
struct LinearConfig {
  int64_t num_heads = 0;
  int64_t head_dim = 0;   // D of q and k
  int64_t value_dim = 0;  // E of v
  Activation q_activation = Activation::kNone;
  Activation k_activation = Activation::kNone;
  Activation v_activation = Activation::kNone;
  PositionConfig position;
  std::vector<double> log_decay;  // [num_heads], each <= 0
  // Low-rank output gate W2(W1 x); absent: the output is normalised only.
  std::optional<Activation> output_gate;
  bool gate_after_norm = false;
};

// Weights are [outputs, inputs]; views into the mapped checkpoint.
struct TpaTensors {
  TensorView a_q, b_q, a_k, b_k, a_v, b_v;  // [R·H, C] and [R·D, C]; rank-major
  TensorView out;                           // [C, H·E]
};
struct LinearTensors {
  TensorView q, k, v;            // [H·D, C], [H·D, C], [H·E, C]
  TensorView gate_in, gate_out;  // [G, C], [H·E, G]; empty without a gate
  TensorView norm;               // [H·E]
  TensorView out;                // [C, H·E]
};

struct TpaLayer {
  TpaConfig config;
  TpaTensors tensors;
};
struct LinearLayer {
  LinearConfig config;
  LinearTensors tensors;
};

// x += mixer(norm(x)); x += w3(act(w1 y) ⊙ (w2 y)) with y = norm(x).
struct LayerDefinition {
  TensorView token_norm;  // [C]
  std::variant<TpaLayer, LinearLayer> mixer;
  TensorView channel_norm;  // [C]
  TensorView w1, w2;        // [F, C]
  TensorView w3;            // [C, F]
};

struct ModelDefinition {
  std::string family;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // C
  int64_t intermediate_size = 0;  // F
  double norm_eps = 0;            // added to the mean of squares
  Activation channel_activation = Activation::kSilu;
  int64_t max_position_embeddings = 0;  // the longest context it was made for

  std::string tokenizer;  // kind, or empty when the checkpoint has none
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;

  TensorView embedding;  // [vocab, C]
  std::vector<LayerDefinition> layers;
  TensorView final_norm;  // [C]
  TensorView head;        // [vocab, C]; the embedding when tied

  uint64_t parameters = 0;
  // Identifies config and weights, for saved states.
  uint64_t fingerprint = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_CONFIG_H_
