#ifndef RECURVE_ENGINE_MODELS_REGISTRY_H_
#define RECURVE_ENGINE_MODELS_REGISTRY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/model_definition.h"

namespace recurve {

// Facts about a checkpoint that its files may lack.
struct FamilyOptions {
  std::string family = "auto";  // auto: by config.json and tensor names
  std::string variant;          // within the family; empty: by the files
};

// "auto" and the names of all families.
std::vector<std::string> FamilyChoices();

// Reads the definition of a checkpoint, by its family. The result's views live
// as long as `checkpoint`.
//
// A family is one file next to this one and one row in registry.cc.
//
// InvalidArgument, with the file, key or tensor at fault and what is supported.
absl::StatusOr<ModelDefinition> ReadModel(const Checkpoint& checkpoint,
                                          const FamilyOptions& options = {});

// ReadModel in two parts. The first reads no matrix values (except a stored
// head that is tied to the embedding, which is compared), so it is fast for any
// size of checkpoint; the second reads all of them from the disk, and refuses
// infinities and NaN.
absl::StatusOr<ModelDefinition> ReadModelShape(
    const Checkpoint& checkpoint, const FamilyOptions& options = {});
absl::Status CheckMatrices(const Checkpoint& checkpoint,
                           const ModelDefinition& model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_REGISTRY_H_
