#ifndef RECURVE_ENGINE_LOADING_CHUNK_PLAN_H_
#define RECURVE_ENGINE_LOADING_CHUNK_PLAN_H_

#include "absl/status/status.h"
#include "engine/program/plan.h"
#include "engine/serving/options.h"

namespace recurve {

// Sets engine->max_chunk_tokens if it is 0, and checks, before any weight is
// loaded, that the tokens per step and per chunk suffice for the plan.
// InvalidArgument names the option and the limit.
absl::Status PlanChunks(const Plan& plan, EngineOptions* engine);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_CHUNK_PLAN_H_
