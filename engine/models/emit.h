#ifndef RECURVE_ENGINE_MODELS_EMIT_H_
#define RECURVE_ENGINE_MODELS_EMIT_H_

#include "absl/status/status.h"
#include "engine/models/model_definition.h"
#include "engine/program/program.h"

namespace recurve {

// The decoder-only transformer that all families share: embedding, layers of a
// token mixer and a feed-forward, final norm, head.
Program Emit(const ModelDefinition& model);

// Whether the GPU supports the model. InvalidArgument names the part, the
// field, its value and the limit.
absl::Status CheckGpu(const ModelDefinition& model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_EMIT_H_
