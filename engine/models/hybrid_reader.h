#ifndef RECURVE_ENGINE_MODELS_HYBRID_READER_H_
#define RECURVE_ENGINE_MODELS_HYBRID_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/json_reader.h"
#include "engine/models/attention/attention_layer.h"
#include "engine/models/family_reader.h"
#include "engine/models/gated_delta/gated_delta_layer.h"
#include "engine/models/model_definition.h"
#include "engine/program/position.h"

namespace recurve {

// Shared by the readers of hybrid models that the transformers library knows:
// their config keys and tensor names agree in part.

// config.json's keys that all of them have.
struct HybridConfig {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double norm_eps = 0;
  Activation activation = Activation::kSilu;  // of the feed-forward
};
// Sets model's sizes, too. Refuses biases. Only num_key_value_heads and
// head_dim have a default, from other keys: the library's differ from what the
// published checkpoints have.
absl::StatusOr<HybridConfig> ReadHybridConfig(const JsonObject& config,
                                              ModelDefinition& model);

// Refuses keys that are not `known` and by their name change what the model
// computes, unless they are null, false, 0 or empty; keeps the names of the
// others (ModelDefinition::ignored_keys).
absl::Status CheckOtherKeys(const JsonObject& config,
                            const std::vector<std::string>& known,
                            ModelDefinition& model);

// The linear_* keys. Every head's sizes are as stored.
absl::StatusOr<GatedDeltaConfig> ReadGatedDeltaConfig(const JsonObject& config);

// For each layer, whether it has full attention: `layer_types`, or every
// full_attention_interval-th, which is every fourth by default.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonObject& config,
                                                 int64_t num_layers);

// How far positions rotate, as a config says it.
struct RopeKeys {
  std::optional<double> theta;  // rope_theta
  bool off = false;             // it is null
  std::optional<double> part;   // partial_rotary_factor
};
// From `rope_parameters`, the older `rope_scaling`, or next to them; as in the
// library, a key in an object holds before one next to it. Refuses types other
// than `types`, objects with other keys, and objects that disagree.
absl::StatusOr<RopeKeys> ReadRopeKeys(const JsonObject& config,
                                      const std::vector<std::string>& types);
// For families that cannot do without a theta, or that rotate whole heads.
absl::StatusOr<double> RequireTheta(const JsonObject& config,
                                    const RopeKeys& keys);
absl::Status RequireWholeRotation(const JsonObject& config,
                                  const RopeKeys& keys);

// Rotation of the first `rotary` of a head's features, i with i + rotary/2,
// by angles as the library computes them. Here i and i + D/2 form a pair:
// `order` has the features of a head in the order in which they then are; the
// products of queries and keys do not change if both are reordered alike.
struct Rotation {
  PositionConfig position;
  std::vector<int32_t> order;  // [D]; empty: as they are
};
Rotation RotateFirst(int64_t head_dim, int64_t rotary, double base);
// That order for the rows of `heads` heads that follow each other, `stride`
// rows apart, the first at row `first`. Never empty.
std::vector<int32_t> RowsOfHeads(const std::vector<int32_t>& order,
                                 int64_t head_dim, int64_t heads,
                                 int64_t stride, int64_t first);
// `values` in that order.
std::vector<float> Reordered(const std::vector<float>& values,
                             const std::vector<int32_t>& order);

// {prefix}q_proj, which has `query_rows` rows, k_proj, v_proj and o_proj.
absl::StatusOr<AttentionTensors> ReadAttentionTensors(
    const std::string& prefix, const HybridConfig& config, int64_t query_rows,
    int64_t hidden, TensorReader& tensors);

// A norm that multiplies by the weight, or by one more than what is stored.
absl::StatusOr<NormDefinition> ReadWeightedNorm(const std::string& name,
                                                int64_t size, double eps,
                                                float plus,
                                                TensorReader& tensors);

// {prefix}gate_proj, up_proj and down_proj.
absl::StatusOr<std::shared_ptr<const LayerPart>> ReadHybridUnit(
    const std::string& prefix, const HybridConfig& config,
    const ModelDefinition& model, TensorReader& tensors);

// Layer i, whose tensors' names begin with `prefix`.
using HybridLayerReader = absl::FunctionRef<absl::StatusOr<LayerDefinition>(
    const std::string& prefix, int64_t i)>;
// Everything but the final norm: {prefix}embed_tokens, each layer and lm_head,
// which is the embedding if `tied` is not empty (ReadHead).
absl::Status ReadHybridModel(const Checkpoint& checkpoint,
                             const std::string& prefix, int64_t num_layers,
                             const std::string& tied,
                             HybridLayerReader read_layer,
                             TensorReader& tensors, ModelDefinition& model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_HYBRID_READER_H_
