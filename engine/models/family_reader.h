#ifndef RECURVE_ENGINE_MODELS_FAMILY_READER_H_
#define RECURVE_ENGINE_MODELS_FAMILY_READER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/config.h"

namespace recurve {

// What the readers of all families share.

// Looks tensors up by name and shape and remembers which were asked for.
// Refuses infinities and NaN in what has one dimension; matrices, which may be
// many gigabytes, are left to CheckMatrices. Every error is InvalidArgument and
// names file and tensor.
class TensorReader {
 public:
  explicit TensorReader(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint) {}

  absl::StatusOr<TensorView> Read(const std::string& name,
                                  const std::vector<int64_t>& shape);
  // A matrix whose row count the tensor itself decides.
  absl::StatusOr<TensorView> ReadWithAnyRows(const std::string& name,
                                             int64_t cols);
  // The elements of a vector, widened.
  absl::StatusOr<std::vector<float>> ReadVector(const std::string& name,
                                                int64_t size);
  // The layer is done with a tensor whose values it does not use.
  void Ignore(const std::string& name) { used_.insert(name); }

  // What the checkpoint holds and nobody read is an error. Fills in what
  // follows from what was read: counts, and the names of the tensors.
  absl::Status Finish(ModelDefinition& model) const;

 private:
  const Checkpoint& checkpoint_;
  std::set<std::string> used_;
  std::vector<std::string> tensors_;
  std::vector<std::string> matrices_;
  uint64_t parameters_ = 0;
};

// config.json's bos_token_id and the end-of-sequence ids, which
// generation_config.json, where present, knows best.
absl::Status ReadSpecialTokens(const Checkpoint& checkpoint,
                               ModelDefinition& model);

// One of the `choices`, under their names in this family.
using ActivationNames = std::vector<std::pair<const char*, Activation>>;
absl::StatusOr<Activation> ReadActivation(
    const JsonObject& object, const std::string& key,
    const ActivationNames& choices,
    const std::optional<std::string>& default_value);

// An RMSNorm of each head with one weight, [dim], for all of them.
NormDefinition NormOfHeads(int64_t num_heads, double eps,
                           const std::vector<float>& weight);

// Whether tie_word_embeddings says that the head is the embedding: empty, or,
// for errors, where it says so.
absl::StatusOr<std::string> ReadTie(const JsonObject& config);

// The head: a tensor of its own or, tied, the embedding, of which the files may
// then hold an equal copy. `tied` says why it is, and is empty where it is not.
// REQUIRES: model.embedding is read.
absl::Status ReadHead(const Checkpoint& checkpoint,
                      const std::string& embedding, const std::string& head,
                      const std::string& tied, TensorReader& tensors,
                      ModelDefinition& model);

// The key where it is there must have this value: the reader supports no other.
absl::Status RequireBool(const JsonObject& object, const std::string& key,
                         bool value);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_FAMILY_READER_H_
