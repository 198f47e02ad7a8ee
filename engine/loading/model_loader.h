#ifndef RECURVE_ENGINE_LOADING_MODEL_LOADER_H_
#define RECURVE_ENGINE_LOADING_MODEL_LOADER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/loading/memory_plan.h"
#include "engine/loading/model_options.h"
#include "engine/models/config.h"
#include "engine/models/model_runner.h"
#include "engine/serving/options.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

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
// files that are there. Null without any. Completes the model by what the
// tokenizer's files say: the kind, the special tokens and remarks of them.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(
    const std::string& path, const std::string& kind, ModelDefinition* model);

// Reads, checks and loads a checkpoint. `engine->max_model_len` 0 means as much
// as model and cache allow; it is set to what holds, and so are tokens in a
// step and in a chunk that are 0 (options.h). InvalidArgument names the option
// or the file and what is supported; what surely does not fit the memory that
// is there is ResourceExhausted, before `on_planned` is called.
absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      EngineOptions* engine,
                                      const PlanListener& on_planned = nullptr);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_MODEL_LOADER_H_
