#ifndef RECURVE_ENGINE_LOADING_CHUNK_PLAN_H_
#define RECURVE_ENGINE_LOADING_CHUNK_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/placement.h"
#include "engine/models/config.h"
#include "engine/serving/options.h"

namespace recurve {

// ModelInfo::chunk_multiple of the model once it is loaded there.
absl::StatusOr<int64_t> PlanChunkMultiple(const Checkpoint& checkpoint,
                                          const ModelDefinition& model,
                                          const Placement& placement);

// Sets engine->max_chunk_tokens if it is 0, and checks, before any weight is
// loaded, that the tokens per step and per chunk suffice for the model there.
// InvalidArgument names the option and the limit.
absl::Status PlanChunks(const Checkpoint& checkpoint,
                        const ModelDefinition& model,
                        const Placement& placement, EngineOptions* engine);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_CHUNK_PLAN_H_
