#ifndef RECURVE_ENGINE_MODELS_REGISTRY_H_
#define RECURVE_ENGINE_MODELS_REGISTRY_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/config.h"

namespace recurve {

// What a user knows of a checkpoint that its files may not say.
struct FamilyOptions {
  std::string family = "auto";  // auto: by config.json and tensor names
  std::string variant;          // within the family; empty: as the files say
};

// Reads what a checkpoint is, by the family it belongs to. The result's views
// live as long as `checkpoint`.
//
// A family is one file beside this one and one row in registry.cc.
//
// InvalidArgument, with the file, key or tensor at fault and what is supported.
absl::StatusOr<ModelDefinition> ReadModel(const Checkpoint& checkpoint,
                                          const FamilyOptions& options = {});

// The same in two parts. The first looks at the values of no matrix (but those
// of a head that is stored though it is tied to the embedding, which are
// compared), and so takes next to no time however large the checkpoint is; the
// second reads all of them from the disk, and refuses infinities and NaN.
absl::StatusOr<ModelDefinition> ReadModelShape(
    const Checkpoint& checkpoint, const FamilyOptions& options = {});
absl::Status CheckMatrices(const Checkpoint& checkpoint,
                           const ModelDefinition& model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_REGISTRY_H_
