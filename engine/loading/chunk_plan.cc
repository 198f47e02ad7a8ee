#include "engine/loading/chunk_plan.h"

#include <string>

#include "base/status_macros.h"
#include "engine/models/decoder.h"
#ifdef RECURVE_HAVE_CUDA
#include "engine/cuda/cuda_linear.h"
#endif

namespace recurve {
namespace {

#ifdef RECURVE_HAVE_CUDA
// Whether all matrices used in products are loaded in bfloat16; must agree with
// CudaBackend::weight_dtype().
absl::StatusOr<bool> HeldInBFloat16(const Checkpoint& checkpoint,
                                    const ModelDefinition& model,
                                    const Placement& placement) {
  if (placement.weight_dtype) {
    return *placement.weight_dtype == DType::kBFloat16;
  }
  for (const std::string& name : model.matrices) {
    RECURVE_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Tensor(name));
    // The embedding is only looked up, unless it is also the head.
    if (tensor.data == model.embedding.data && tensor.data != model.head.data) {
      continue;
    }
    if (tensor.dtype != DType::kBFloat16) return false;
  }
  return true;
}
#endif

}  // namespace

absl::StatusOr<int64_t> PlanChunkMultiple(const Checkpoint& checkpoint,
                                          const ModelDefinition& model,
                                          const Placement& placement) {
  if (!placement.cuda) return 1;
#ifdef RECURVE_HAVE_CUDA
  RECURVE_ASSIGN_OR_RETURN(const bool bfloat16,
                           HeldInBFloat16(checkpoint, model, placement));
  return CudaLinear::ChunkMultiple(placement.hopper,
                                   StateBytesPerSequence(model) > 0, bfloat16);
#else
  (void)checkpoint;
  (void)model;
  return 1;
#endif
}

absl::Status PlanChunks(const Checkpoint& checkpoint,
                        const ModelDefinition& model,
                        const Placement& placement, EngineOptions* engine) {
  RECURVE_ASSIGN_OR_RETURN(const int64_t multiple,
                           PlanChunkMultiple(checkpoint, model, placement));
  if (engine->max_chunk_tokens == 0) {
    engine->max_chunk_tokens = DefaultChunkTokens(
        HasWholePrompts(model), multiple, engine->max_num_batched_tokens,
        engine->max_num_seqs);
  }
  return engine->ValidateMultiple(multiple, placement.cuda ? "cuda" : "cpu");
}

}  // namespace recurve
