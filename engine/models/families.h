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

// Qwen3.5, dense (docs/families.md): the model types qwen3_5, of which the text
// is served, and qwen3_5_text.
bool IsQwen35(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadQwen35(const Checkpoint& checkpoint,
                                           const std::string& variant);

// OLMo Hybrid (docs/families.md).
bool IsOlmoHybrid(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadOlmoHybrid(const Checkpoint& checkpoint,
                                               const std::string& variant);

// MiniCPM-SALA (docs/families.md).
bool IsMiniCpmSala(const Checkpoint& checkpoint);
absl::StatusOr<ModelDefinition> ReadMiniCpmSala(const Checkpoint& checkpoint,
                                                const std::string& variant);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_FAMILIES_H_
