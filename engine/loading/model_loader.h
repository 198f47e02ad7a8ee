#ifndef RECURVE_ENGINE_LOADING_MODEL_LOADER_H_
#define RECURVE_ENGINE_LOADING_MODEL_LOADER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/loading/fingerprint.h"
#include "engine/loading/memory_plan.h"
#include "engine/loading/model_options.h"
#include "engine/models/model_definition.h"
#include "engine/program/model_runner.h"
#include "engine/serving/options.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// Receives the plan before any weight is loaded, which may take minutes.
// `device`: see LoadedModel.
using PlanListener =
    std::function<void(const std::string& device, const Capacity& capacity)>;

struct LoadedModel {
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<Tokenizer> tokenizer;  // null if the checkpoint has none
  Capacity capacity;
  std::string device;  // the device chosen, and why, in words
  std::vector<std::string> ignored_keys;  // ModelDefinition
  Fingerprint fingerprint;                // empty without a prefix cache
  double load_seconds = 0;                // time to load the weights
  double warm_up_seconds = 0;             // time for the warm-up steps
};

// The tokenizer of the checkpoint in folder `path`. `kind` as
// ModelOptions::tokenizer; auto: the kind that the model names, else that of
// the files present. Null if there is none. Completes the model from the
// tokenizer's files: the kind, the special tokens and remarks on them.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(
    const std::string& path, const std::string& kind, ModelDefinition* model);

// Reads, checks and loads a checkpoint. `engine->max_model_len` 0 means the
// maximum that model and cache allow; it is set to the effective limit, and so
// are tokens per step and per chunk that are 0 (options.h). InvalidArgument
// names the option or the file and what is supported; ResourceExhausted if the
// model certainly does not fit into memory, before `on_planned` is called.
absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      EngineOptions* engine,
                                      const PlanListener& on_planned = nullptr);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_MODEL_LOADER_H_
