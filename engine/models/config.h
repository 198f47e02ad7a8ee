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
#include "kernels/matmul/packed_matrix.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// A model in terms common to all families. A family maps its own config keys
// and tensor names to these; later code does not know which family a model came
// from.

// Position encoding of queries and keys.
struct PositionConfig {
  LrpeType type = LrpeType::kNone;
  // [LrpeAngles(type, head_dim)] radians a position; a negative angle rotates
  // backwards, 0 leaves a pair of features unchanged.
  std::vector<double> theta;

  // Angles as one float32 product, and the following steps in float32
  // (LrpeFloat32TableParams): for models whose weights expect the rounding.
  bool float32_angles = false;
  bool bfloat16_tables = false;
  float log_decay = 0;

  bool operator==(const PositionConfig&) const = default;
};

// y = x · rsqrt(mean(x²) + eps) · weight over each of `groups` parts of a row,
// or LayerNorm over the whole row.
enum class NormKind { kRms, kLayer };
struct NormDefinition {
  NormKind kind = NormKind::kRms;
  int64_t groups = 1;         // 1 for kLayer
  double eps = 0;             // added to the mean square, or to the variance
  std::vector<float> weight;  // [cols], or empty
  std::vector<float> bias;    // [cols], or empty; kLayer only
};

// Tensor product attention; maths in kernels/tpa/tpa.h.
struct TpaConfig {
  TpaShape shape;
  PositionConfig position;  // kNone or kRotate
  // For A_k and A_v; softmax over all R·H.
  Activation factor_activation = Activation::kNone;
};

// Linear attention; maths in kernels/linear_attn/linear_attn.h.
struct LinearConfig {
  int64_t num_heads = 0;
  int64_t head_dim = 0;   // D of q and k
  int64_t value_dim = 0;  // E of v
  // Queries, and keys and values, are expanded from factors of these ranks
  // (kernels/tpa/append/expand_factors.h); 0: projected directly.
  int64_t q_rank = 0;
  int64_t kv_rank = 0;
  // x / sqrt(Σ x² + eps) over each head's features, before the activation.
  struct L2Norm {
    double eps = 0;
  };
  std::optional<L2Norm> q_norm, k_norm, v_norm;
  Activation q_activation = Activation::kNone;
  Activation k_activation = Activation::kNone;
  Activation v_activation = Activation::kNone;
  PositionConfig position;
  std::vector<double> log_decay;  // [num_heads], each <= 0
  // False: the tokens of the prompt, which is what the first command of a
  // sequence appends, all see the state after the prompt; later tokens see what
  // precedes them. Such a layer has no decay.
  bool causal = true;
  // Low-rank output gate W2(W1 x); absent: the output is only normalised. A
  // gate needs an RMSNorm.
  std::optional<Activation> output_gate;
  bool gate_after_norm = false;
};

// Weights are [outputs, inputs]; views into the mapped checkpoint, whose rows
// the model may need in another order.
struct FactorTensors {
  MatrixPart a;  // [R·H, C], rank-major
  MatrixPart b;  // [R·D, C]
};
struct TpaTensors {
  FactorTensors q, k, v;  // for direct queries: b is [H·D, C] and there is no a
  MatrixPart out;         // [C, H·E]
};
struct LinearTensors {
  // [H·D, C], [H·D, C], [H·E, C] in b; with a rank, factors.
  FactorTensors q, k, v;
  MatrixPart gate_in, gate_out;  // [G, C], [H·E, G]; empty without a gate
  MatrixPart out;                // [C, H·E]
};

// A layer's mixer. The norm, over H·E features, comes before `out`.
struct TpaLayer {
  TpaConfig config;
  TpaTensors tensors;
  std::optional<NormDefinition> norm;
};
struct LinearLayer {
  LinearConfig config;
  LinearTensors tensors;
  std::optional<NormDefinition> norm;
};

// Token position encoding by a decaying sum, in place of the embedding (xmixers
// TPE): for each head u ← λ u + x, and x becomes out · norm(gain · u).
struct TpeLayer {
  int64_t num_heads = 0;
  std::vector<float> decay;  // [num_heads] λ
  std::vector<float> gain;   // [num_heads]
  NormDefinition norm;
  MatrixPart out;  // [C, C]
};

// x += mixer(norm(x)); x += w3(act(w1 y) ⊙ (w2 y)) with y = norm(x).
struct LayerDefinition {
  NormDefinition token_norm;
  // A new kind of mixer is an alternative here and a TokenMixer.
  std::variant<TpaLayer, LinearLayer> mixer;
  NormDefinition channel_norm;
  MatrixPart w1, w2;  // [F, C]
  MatrixPart w3;      // [C, F]
};

struct ModelDefinition {
  std::string family;
  std::string variant;               // within the family, or empty
  std::vector<std::string> remarks;  // for the operator
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // C
  int64_t intermediate_size = 0;  // F
  Activation channel_activation = Activation::kSilu;
  int64_t max_position_embeddings = 0;  // the longest context it was trained
                                        // for

  std::string tokenizer;  // kind, or empty if the checkpoint has none
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  std::string eos_file;           // path of the file that names them, for
                                  // errors
  bool eos_by_tokenizer = false;  // named by one of the tokenizer's files only

  TensorView embedding;         // [vocab, C]
  float embedding_scale = 1;    // factor for each row
  std::optional<TpeLayer> tpe;  // between the embedding and the layers
  std::vector<LayerDefinition> layers;
  NormDefinition final_norm;
  TensorView head;  // [vocab, C]; the embedding when tied
  // The names of all tensors that are loaded. The files may hold others, which
  // the model ignores.
  std::vector<std::string> tensors;
  // The names of the matrices among them, which CheckMatrices has to check.
  std::vector<std::string> matrices;

  uint64_t parameters = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_CONFIG_H_
