#ifndef RECURVE_ENGINE_LOADING_MEMORY_PLAN_H_
#define RECURVE_ENGINE_LOADING_MEMORY_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_options.h"
#include "engine/loading/placement.h"
#include "engine/models/config.h"
#include "engine/serving/options.h"
#ifdef RECURVE_HAVE_CUDA
#include "engine/cuda/cuda_backend.h"
#endif

namespace recurve {

// What a server with these options holds: computed before any weight is loaded.
struct Capacity {
  int64_t max_model_len = 0;
  int64_t num_pages = 0;
  int64_t num_slots = 0;
  int64_t cache_bytes_per_token = 0;
  int64_t state_bytes_per_sequence = 0;
  // Of all weights as they are held, but for what pads them; of all pages and
  // of all states, with those of padding.
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t state_bytes = 0;
  // Of the host's memory, to save sequences in: --swap-bytes, or 0 if that is a
  // default and the host has not as much.
  int64_t swap_bytes = 0;
  int64_t supported_model_len = 0;  // by the model
  // Of a model that looks at prompts as a whole, else 0: tokens of the longest
  // prompt, and those that find room in any step, whatever else runs.
  int64_t max_whole_tokens = 0;
  int64_t sure_whole_tokens = 0;
  // Less than the model supports, because the cache is too small for more.
  bool max_model_len_reduced = false;

  int64_t bytes() const { return weight_bytes + cache_bytes + state_bytes; }
};

// Of the weights that are loaded, as they are held, but for what pads them; the
// files may hold tensors that are not. All that is no matrix is float32. Reads
// no weight.
absl::StatusOr<int64_t> WeightBytes(const Checkpoint& checkpoint,
                                    const ModelDefinition& model,
                                    const Placement& placement);

// What the factor cache takes of a GPU with so many bytes free if nobody says,
// where `others` go to weights, states and what steps work in: what is left
// but 1 GiB and a sixteenth of the free ones, which are for graphs, libraries
// and what is not counted; 1 GiB, as on the CPU, if that is more.
int64_t DefaultGpuPoolBytes(int64_t free_bytes, int64_t others);

// Shares out memory, and sees whether there is as much. `engine` has its
// defaults; max_model_len is set to what holds. InvalidArgument names the
// option and what is supported; ResourceExhausted, with what is needed and what
// there is, for what surely does not fit.
absl::StatusOr<Capacity> PlanMemory(const Checkpoint& checkpoint,
                                    const ModelDefinition& model,
                                    const ModelOptions& options,
                                    const Placement& placement,
                                    EngineOptions* engine);

#ifdef RECURVE_HAVE_CUDA
// Of a backend for such a capacity.
CudaBackend::Options CudaOptions(const ModelDefinition& model,
                                 const Placement& placement,
                                 const Capacity& capacity,
                                 const EngineOptions& engine);
#endif

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_MEMORY_PLAN_H_
