#ifndef RECURVE_ENGINE_MODEL_LOADER_H_
#define RECURVE_ENGINE_MODEL_LOADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"
#include "engine/models/registry.h"
#include "engine/options.h"
#include "engine/tokenizer/tokenizer.h"

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
  bool swap_bytes_required = true;
};

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
  int64_t supported_model_len = 0;  // by the model
  // Less than the model supports, because the cache is too small for more.
  bool max_model_len_reduced = false;

  int64_t bytes() const { return weight_bytes + cache_bytes + state_bytes; }
};

// Hears what was chosen, before any weight is loaded, which may take minutes.
// `device`: see LoadedModel.
using PlanListener =
    std::function<void(const std::string& device, const Capacity& capacity)>;

struct LoadedModel {
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<Tokenizer> tokenizer;  // null when the checkpoint has none
  Capacity capacity;
  std::string device;       // what was chosen, and why, for people
  double load_seconds = 0;  // that weights took
  double warm_up_seconds =
      0;  // that steps took which were run before the first
};

// The tokenizer of the checkpoint in folder `path`. `kind` as
// ModelOptions::tokenizer; auto: of the kind that the model names, else of the
// files that are there. Null without any.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(
    const std::string& path, const std::string& kind,
    const ModelDefinition& model);

// What the factor cache takes of a GPU with so many bytes free if nobody says,
// where `others` go to weights, states and what steps work in: what is left
// but 1 GiB and a sixteenth of the free ones, which are for graphs, libraries
// and what is not counted; 1 GiB, as on the CPU, if that is more.
int64_t DefaultGpuPoolBytes(int64_t free_bytes, int64_t others);

// Reads, checks and loads a checkpoint. `engine->max_model_len` 0 means as much
// as model and cache allow; it is set to what holds, and so are tokens in a
// step and in a chunk that are 0 (options.h). InvalidArgument names the option
// or the file and what is supported; what surely does not fit the memory that
// is there is ResourceExhausted, before `on_planned` is called.
absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      EngineOptions* engine,
                                      const PlanListener& on_planned = nullptr);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODEL_LOADER_H_
