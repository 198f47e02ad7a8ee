#ifndef RECURVE_ENGINE_LOADING_MODEL_OPTIONS_H_
#define RECURVE_ENGINE_LOADING_MODEL_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>

#include "engine/models/registry.h"

namespace recurve {

// How to bring a checkpoint to life. Each field is what the server's flag of
// that name says.
struct ModelOptions {
  std::string path;      // folder of the checkpoint
  FamilyOptions family;  // --model-family, --model-variant
  // auto: as the checkpoint says; none: token ids only; else a kind
  std::string tokenizer = "auto";
  // auto: cuda where there is a usable GPU, else cpu
  std::string device = "auto";
  // Of weights: auto (as stored), float32, bfloat16; on the GPU float16.
  std::string dtype = "auto";
  std::string state_dtype = "auto";
  // Of the factor cache: float32 on the CPU; bfloat16 or float16 on the GPU,
  // where auto is bfloat16 with bfloat16 weights and else float16.
  std::string kv_dtype = "auto";
  // That a request's tokens do not depend on what runs beside it. There is no
  // other mode: false is refused.
  bool exact = true;
  int num_threads = 0;   // CPU threads; 0: one a core
  int64_t kv_pages = 0;  // pages of the TPA factor cache; 0: from kv_pool_bytes
  // The most that the factor cache may take; 0: 1 GiB on the CPU, and on a GPU
  // whose memory is the host's; on others DefaultGpuPoolBytes.
  int64_t kv_pool_bytes = 0;
  // Memory of the host, page-locked for a GPU, that preempted sequences are
  // saved in; 0: they are computed again.
  int64_t swap_bytes = int64_t{1} << 30;
  // Whether too few of them for one sequence, or more than the host has, are an
  // error. Else none are used: a default that does not fit a model or a host
  // must not keep it from being served.
  bool swap_bytes_required = false;
};

// `num_threads`, or one for each core.
inline int NumThreads(const ModelOptions& options) {
  if (options.num_threads > 0) return options.num_threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_MODEL_OPTIONS_H_
