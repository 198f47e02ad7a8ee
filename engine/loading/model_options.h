#ifndef RECURVE_ENGINE_LOADING_MODEL_OPTIONS_H_
#define RECURVE_ENGINE_LOADING_MODEL_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>

#include "engine/models/registry.h"

namespace recurve {

// Options for loading a checkpoint. Each field is the server's flag of that
// name.
struct ModelOptions {
  std::string path;      // folder of the checkpoint
  FamilyOptions family;  // --model-family, --model-variant
  // auto: by the checkpoint; none: token ids only; else a kind
  std::string tokenizer = "auto";
  // auto: cuda if there is a usable GPU, else cpu
  std::string device = "auto";
  // Type of weights: auto (as stored), float32, bfloat16; on the GPU also
  // float16.
  std::string dtype = "auto";
  std::string state_dtype = "auto";
  // Type of the KV cache: float32 on the CPU; bfloat16, float16 or, where no
  // layer is TPA, float32 on the GPU, where auto follows the weights.
  std::string kv_dtype = "auto";
  // A request's tokens do not depend on what runs alongside it. There is no
  // other mode: false is refused.
  bool exact = true;
  int num_threads = 0;   // CPU threads; 0: one per core
  int64_t kv_pages = 0;  // pages of the KV cache; 0: from kv_pool_bytes
  // Maximum size of the KV cache; 0: 1 GiB on the CPU and on a GPU that
  // shares the host's memory; on others DefaultGpuPoolBytes.
  int64_t kv_pool_bytes = 0;
  // Host memory, page-locked for a GPU, to save preempted sequences in; 0: they
  // are computed again.
  int64_t swap_bytes = int64_t{1} << 30;
  // Whether it is an error if swap_bytes is too small for one sequence, or more
  // than the host has. Otherwise none is used: a default that does not fit a
  // model or a host must not prevent serving it.
  bool swap_bytes_required = false;
  // More of such memory, for snapshots of prompts (prefix_cache.h); 0: none are
  // kept.
  int64_t prefix_cache_bytes = 0;
  // In place of that, a quarter of the memory that the host has left; for a GPU
  // at most kMostAutoPinnedBytes, because it is page-locked at the start.
  bool prefix_cache_auto = false;
};

inline constexpr int64_t kMostAutoPinnedBytes = int64_t{8} << 30;

// `num_threads`, or one per core.
inline int NumThreads(const ModelOptions& options) {
  if (options.num_threads > 0) return options.num_threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_MODEL_OPTIONS_H_
