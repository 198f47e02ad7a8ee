#ifndef RECURVE_ENGINE_PROGRAM_MODEL_RUNNER_H_
#define RECURVE_ENGINE_PROGRAM_MODEL_RUNNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/program/step.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Facts about a loaded model.
struct ModelInfo {
  std::string family;
  std::string variant;               // within the family, or empty
  std::vector<std::string> remarks;  // for the operator
  uint64_t parameters = 0;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  std::vector<std::string> mixers;  // per layer, "tpa" or "linear"
  int64_t max_position_embeddings = 0;
  std::string tokenizer;
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  // The file that names them, if only one of the tokenizer's does.
  std::string eos_file_of_tokenizer;
  std::string device;
  std::string weight_dtype;
  std::string state_dtype;
  std::string kv_dtype;
  uint64_t weight_bytes = 0;
  // The tokens of a sequence in a step must end at a multiple of this, or with
  // its last (SchedulerLimits): a divisor of kPageTokens.
  int64_t chunk_multiple = 1;
  // The tokens that the first command of a sequence appends must be computed in
  // one step: a layer processes them as a whole.
  bool whole_prompts = false;
  // Whether a token's bits depend on its TokenKind.
  bool kinds_differ = true;
};

// Runs steps of a model and owns the memory its sequences live in. The engine's
// only interface to models, and where tests insert fakes.
//
// Thread safety: all but info() belong to the engine's step thread.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const ModelInfo& info() const = 0;
  // Pages and slots that this runner has allocated.
  virtual CacheSpec cache_spec() const = 0;
  virtual CacheStorage& storage() = 0;

  // Runs the batch: writes its tokens into pages and states, computes the
  // wanted logits, draws the samples. An error means that the device failed:
  // the contents of every page and slot in the batch are unknown.
  virtual absl::Status Run(const StepBatch& batch, StepOutput* output) = 0;

  // Run, split in two. Wait returns the results of the earliest step that was
  // launched and not waited for; its batch lives until then. Launches and
  // operations of storage() take effect in call order.
  //
  // If runs_ahead(), a second step may be launched before the first is waited
  // for; it may be fed the first's samples (StepBatch::fed), and the spans of
  // its SampleRequests are not read after Launch. Otherwise a step runs when it
  // is waited for.
  virtual bool runs_ahead() const { return false; }
  virtual absl::Status Launch(const StepBatch& batch) {
    launched_ = &batch;
    return absl::OkStatus();
  }
  virtual absl::Status Wait(StepOutput* output) {
    return Run(*launched_, output);
  }

 private:
  const StepBatch* launched_ = nullptr;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_MODEL_RUNNER_H_
