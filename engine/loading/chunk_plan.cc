#include "engine/loading/chunk_plan.h"

namespace recurve {

absl::Status PlanChunks(const Plan& plan, EngineOptions* engine) {
  if (engine->max_chunk_tokens == 0) {
    engine->max_chunk_tokens = DefaultChunkTokens(
        plan.whole_prompts, plan.chunk_multiple, engine->max_num_batched_tokens,
        engine->max_num_seqs);
  }
  return engine->ValidateMultiple(plan.chunk_multiple,
                                  plan.device.gpu ? "cuda" : "cpu");
}

}  // namespace recurve
