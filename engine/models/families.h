#ifndef RECURVE_ENGINE_MODELS_FAMILIES_H_
#define RECURVE_ENGINE_MODELS_FAMILIES_H_

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/config.h"

namespace recurve {

// One pair for each row of the table in registry.cc: does the checkpoint belong
// to the family, and what is it then.

// Recurve's own format (docs/model-format.md): config.json lists layers one by
// one.
bool IsRecurve(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadRecurve(const Checkpoint& checkpoint);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_FAMILIES_H_
