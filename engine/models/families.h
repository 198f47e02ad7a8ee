#ifndef RECURVE_ENGINE_MODELS_FAMILIES_H_
#define RECURVE_ENGINE_MODELS_FAMILIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/model_definition.h"

namespace recurve {

// One pair for each row of the table in registry.cc: whether the checkpoint
// belongs to the family, and its definition. `variant` is the value of
// --model-variant, or empty.

// Recurve's own format (docs/model-format.md): config.json lists layers one by
// one.
bool IsRecurve(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadRecurve(const Checkpoint& checkpoint,
                                            const std::string& variant);

// T6 (github.com/tensorgi/T6; docs/families.md). The variant is the name of the
// authors' model file and overrides config.json's t6_variant.
bool IsT6(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadT6(const Checkpoint& checkpoint,
                                       const std::string& variant);

// xmixers (github.com/Doraemonzzz/xmixers; docs/families.md): the model types
// llama_ with tensor product attention, linear_transformer, tnl, naive_hybrid.
bool IsXmixers(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadXmixers(const Checkpoint& checkpoint,
                                            const std::string& variant);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_FAMILIES_H_
