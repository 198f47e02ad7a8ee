#ifndef RECURVE_ENGINE_MODELS_MODEL_DEFINITION_H_
#define RECURVE_ENGINE_MODELS_MODEL_DEFINITION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor_view.h"
#include "engine/models/layer_part.h"
#include "engine/models/norm_definition.h"

namespace recurve {

// A model in terms common to all families. A family maps its own config keys
// and tensor names to these; later code does not know which family a model came
// from.

// x += mixer(norm(x)); x += feed_forward(norm(x)); or, with the norms after,
// x += norm(mixer(x)); x += norm(feed_forward(x)).
struct LayerDefinition {
  bool norms_after = false;
  NormDefinition token_norm;
  std::shared_ptr<const LayerPart> mixer;
  NormDefinition channel_norm;
  std::shared_ptr<const LayerPart> feed_forward;
};

struct ModelDefinition {
  std::string family;
  std::string variant;               // within the family, or empty
  std::vector<std::string> remarks;  // for the operator
  // Keys of config.json that change nothing here, or nothing known.
  std::vector<std::string> ignored_keys;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;              // C
  int64_t intermediate_size = 0;        // F, of gated units
  int64_t max_position_embeddings = 0;  // the longest context it was trained
                                        // for
  int64_t default_model_len = 0;        // of --max-model-len, if it is shorter;
                                        // 0: none

  std::string tokenizer;  // kind, or empty if the checkpoint has none
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  std::string eos_file;           // path of the file that names them, for
                                  // errors
  bool eos_by_tokenizer = false;  // named by one of the tokenizer's files only

  TensorView embedding;       // [vocab, C]
  float embedding_scale = 1;  // factor for each row
  // Token position encoding, between the embedding and the layers; or null.
  // Its input is the embedding, to which nothing is added.
  std::shared_ptr<const LayerPart> tpe;
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

#endif  // RECURVE_ENGINE_MODELS_MODEL_DEFINITION_H_
