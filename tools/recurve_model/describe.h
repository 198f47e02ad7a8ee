#ifndef RECURVE_TOOLS_RECURVE_MODEL_DESCRIBE_H_
#define RECURVE_TOOLS_RECURVE_MODEL_DESCRIBE_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/model_definition.h"
#include "tools/recurve_model/capacity.h"

namespace recurve {

// Tensors of one element type, as stored on disk.
struct StoredWeights {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// What a checkpoint is, in plain facts.
struct CheckpointFacts {
  std::string path;
  std::string family;
  std::string variant;  // within the family, or empty
  std::vector<std::string> remarks;
  std::vector<std::string> ignored_keys;  // of config.json
  std::vector<std::string> mixers;        // per layer, "tpa" or "linear"
  // The options of each kind of mixer, in the order of the layers.
  std::vector<std::string> mixer_options;
  bool tpe = false;  // token position encoding before the layers
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  uint64_t parameters = 0;
  int64_t files = 0;                            // files with weights
  std::map<std::string, StoredWeights> stored;  // by element type, "float32" …
  int64_t stored_bytes = 0;
  // For a server with --dtype auto and --kv-dtype auto, by its own estimate.
  MemoryNeeds cpu;
  MemoryNeeds gpu;
  std::string tokenizer;  // empty: token ids only
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
};

CheckpointFacts Describe(const Checkpoint& checkpoint,
                         const ModelDefinition& model);

// "2 x tpa, 1 x linear": runs in the order of the layers.
std::string CompressRuns(const std::vector<std::string>& names);

// The same facts as text of several lines, and as one JSON object.
std::string FactsText(const CheckpointFacts& facts);
nlohmann::ordered_json FactsJson(const CheckpointFacts& facts);

// How many sequences fit into the memory of the CPU or of a GPU.
struct CapacityFacts {
  int64_t memory = 0;      // bytes
  int64_t length = 0;      // tokens
  std::optional<Fit> cpu;  // absent if the weights alone need more
  Fit gpu;
};

// InvalidArgument for a length that the model does not support, or if the
// weights fit on neither device: a GPU never needs fewer bytes for them than
// the CPU.
// REQUIRES: memory and length above 0.
absl::StatusOr<CapacityFacts> PlanCapacity(const CheckpointFacts& facts,
                                           int64_t memory, int64_t length);

std::string CapacityText(const CheckpointFacts& facts,
                         const CapacityFacts& capacity);
nlohmann::ordered_json CapacityJson(const CapacityFacts& capacity);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_DESCRIBE_H_
