#ifndef RECURVE_ENGINE_MODELS_EMIT_H_
#define RECURVE_ENGINE_MODELS_EMIT_H_

#include <optional>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "engine/models/model_definition.h"
#include "engine/program/program.h"

namespace recurve {

// The decoder-only transformer that all families share: embedding, layers of a
// token mixer and a feed-forward, final norm, head.
Program Emit(const ModelDefinition& model);

// Whether the GPU supports the model. InvalidArgument names the part, the
// field, its value and the limit.
absl::Status CheckGpu(const ModelDefinition& model);

// Whether the GPU supports pages of float32 for all layers.
bool TakesFloatPages(const ModelDefinition& model);
// The type of a GPU's pages if none is asked for: that of the weights, of which
// the embedding stands for those that are held as stored; in place of float32
// float16, unless all layers take that.
DType GpuPagesFor(const ModelDefinition& model,
                  const std::optional<DType>& weights);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_EMIT_H_
