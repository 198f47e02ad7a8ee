#ifndef RECURVE_ENGINE_MODELS_FAMILY_READER_H_
#define RECURVE_ENGINE_MODELS_FAMILY_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/model_definition.h"

namespace recurve {

// Shared by the readers of all families.

// The largest width of a layer, and vocabulary.
inline constexpr int64_t kMaxDim = 1 << 20;

// Looks tensors up by name and shape and records which were used. Refuses
// infinities and NaN in vectors; matrices, which may be many gigabytes, are
// left to CheckMatrices. Every error is InvalidArgument and names file and
// tensor.
class TensorReader {
 public:
  explicit TensorReader(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint) {}

  absl::StatusOr<TensorView> Read(const std::string& name,
                                  const std::vector<int64_t>& shape);
  // A matrix with any number of rows.
  absl::StatusOr<TensorView> ReadWithAnyRows(const std::string& name,
                                             int64_t cols);
  // The elements of a vector, widened.
  absl::StatusOr<std::vector<float>> ReadVector(const std::string& name,
                                                int64_t size);
  // The elements of a tensor of this shape, widened, row after row.
  absl::StatusOr<std::vector<float>> ReadValues(
      const std::string& name, const std::vector<int64_t>& shape);
  // Marks a tensor as used although the layer does not need its values.
  void Ignore(const std::string& name) { used_.insert(name); }

  // Refuses tensors of the checkpoint that were not read. Fills in what follows
  // from those that were: counts, and the names of the tensors.
  absl::Status Finish(ModelDefinition& model) const;

 private:
  const Checkpoint& checkpoint_;
  std::set<std::string> used_;
  std::vector<std::string> tensors_;
  std::vector<std::string> matrices_;
  uint64_t parameters_ = 0;
};

// `config`'s bos_token_id and the end-of-sequence ids, for which
// generation_config.json, if present, takes precedence.
absl::Status ReadSpecialTokens(const Checkpoint& checkpoint,
                               const JsonObject& config,
                               ModelDefinition& model);

// One of the `choices`, by their names in this family.
using ActivationNames = std::vector<std::pair<const char*, Activation>>;
absl::StatusOr<Activation> ReadActivation(
    const JsonObject& object, const std::string& key,
    const ActivationNames& choices,
    const std::optional<std::string>& default_value);

// An RMSNorm of each head, with one weight [dim] shared by all.
NormDefinition NormOfHeads(int64_t num_heads, double eps,
                           const std::vector<float>& weight);

// Whether tie_word_embeddings makes the head the embedding: the place that says
// so, for errors, or empty.
absl::StatusOr<std::string> ReadTie(const JsonObject& config);

// The head: a separate tensor or, if tied, the embedding, of which the files
// may then hold an equal copy. `tied` is the reason, and empty if it is not
// tied.
// REQUIRES: model.embedding is read.
absl::Status ReadHead(const Checkpoint& checkpoint,
                      const std::string& embedding, const std::string& head,
                      const std::string& tied, TensorReader& tensors,
                      ModelDefinition& model);

// The key, if present, must have this value: the reader supports no other.
absl::Status RequireBool(const JsonObject& object, const std::string& key,
                         bool value);

// The names of a gated linear unit's matrices.
struct GatedUnitNames {
  std::string w1, w2, w3;
};
absl::StatusOr<std::shared_ptr<const LayerPart>> ReadGatedUnit(
    const GatedUnitNames& names, Activation activation, int64_t inner,
    int64_t hidden, TensorReader& tensors);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_FAMILY_READER_H_
