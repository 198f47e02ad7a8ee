#ifndef RECURVE_ENGINE_LOADING_MEMORY_PLAN_H_
#define RECURVE_ENGINE_LOADING_MEMORY_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/loading/model_options.h"
#include "engine/loading/placement.h"
#include "engine/models/model_definition.h"
#include "engine/program/plan.h"
#include "engine/program/program.h"
#include "engine/serving/options.h"
#ifdef RECURVE_HAVE_CUDA
#include "engine/cuda/cuda_executor.h"
#endif

namespace recurve {

// Limits and memory sizes of a server, computed before any weight is loaded.
struct Capacity {
  int64_t max_model_len = 0;
  int64_t num_pages = 0;
  int64_t num_slots = 0;
  int64_t cache_bytes_per_token = 0;
  int64_t state_bytes_per_sequence = 0;
  // All weights as they are held; all pages and all states, with the padding
  // ones.
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t state_bytes = 0;
  // Host memory to save sequences in: --swap-bytes, or 0 if that is a default
  // and the host lacks the memory.
  int64_t swap_bytes = 0;
  // And for snapshots of prompts: --prefix-cache-bytes.
  int64_t prefix_cache_bytes = 0;
  int64_t supported_model_len = 0;  // by the model
  // For a model that processes prompts as a whole, else 0: tokens of the
  // longest prompt, and the number that fits into any step, whatever else runs.
  int64_t max_whole_tokens = 0;
  int64_t sure_whole_tokens = 0;
  // The cache is too small for the model's supported length.
  bool max_model_len_reduced = false;

  int64_t bytes() const { return weight_bytes + cache_bytes + state_bytes; }
};

// Default size of the KV cache on a GPU with `free_bytes` free, of which
// `others` are for weights, states and workspaces: the remainder less 1 GiB and
// a sixteenth of free_bytes, which are for graphs, libraries and uncounted
// allocations; at least 1 GiB, as on the CPU.
int64_t DefaultGpuPoolBytes(int64_t free_bytes, int64_t others);

// Distributes memory and checks that it suffices. `engine` has its defaults;
// max_model_len is set to the effective limit. InvalidArgument names the option
// and what is supported; ResourceExhausted, with the need and the memory
// available, if the model certainly does not fit.
absl::StatusOr<Capacity> PlanMemory(const ModelDefinition& model,
                                    const Program& program, const Plan& plan,
                                    const ModelOptions& options,
                                    const Placement& placement,
                                    EngineOptions* engine);

#ifdef RECURVE_HAVE_CUDA
// Options of an executor with this capacity.
CudaExecutor::Options CudaOptions(const Capacity& capacity,
                                  const EngineOptions& engine);
#endif

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_MEMORY_PLAN_H_
