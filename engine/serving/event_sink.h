#ifndef RECURVE_ENGINE_SERVING_EVENT_SINK_H_
#define RECURVE_ENGINE_SERVING_EVENT_SINK_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/serving/cache_use.h"

namespace recurve {

enum class FinishReason { kLength, kEos, kStopToken, kStopString };

// The output of one step for one sequence.
struct StepEvent {
  struct LogitsRow {
    int64_t position;
    std::vector<float> values;  // [vocab]
  };
  std::vector<LogitsRow> logits;

  // Log-probabilities of tokens of the prompt, in order.
  struct PromptLogprob {
    int64_t position;  // of the token; at least 1
    int32_t token;
    float logprob;  // -Inf for an impossible token
    int64_t rank;   // 1 plus the number of likelier tokens
    std::vector<std::pair<int32_t, float>> top;  // the likeliest, best first
  };
  std::vector<PromptLogprob> prompt_logprobs;

  // False: only logits, prompt_logprobs, or text held back at earlier tokens.
  bool has_token = false;
  int64_t index = 0;  // index among the generated tokens of the sequence
  int32_t token = 0;
  std::string text;  // whole characters that can be shown now
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top_logprobs;
};

struct CommandResult {
  FinishReason reason = FinishReason::kLength;
  std::string stop_string;  // if reason is kStopString
  std::string text;         // held back until now
  int64_t sequence_tokens = 0;
  int64_t prompt_tokens = 0;  // appended by the client, in all commands
  int64_t completion_tokens = 0;
  int64_t preemptions = 0;
  CacheUse cache;            // for the first command
  double queue_seconds = 0;  // these three are measured from Submit
  double time_to_first_token_seconds = 0;
  double total_seconds = 0;
};

// Receives the engine's reports on one sequence. Called on the step thread, in
// this order: OnAdmitted once, then OnStep and OnCommandDone as commands run,
// and OnEnd last. OnEnd may come at any time, and nothing comes after it; the
// sequence's memory is free by then.
//
// Implementations must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;

  virtual void OnAdmitted(double queue_seconds) = 0;
  // Returns false if the reader is behind: the sequence then pauses until
  // Engine::Resume. An event with text alone carries text held back until the
  // end of the stream; it does not wait for the reader.
  [[nodiscard]] virtual bool OnStep(StepEvent event) = 0;
  virtual void OnCommandDone(CommandResult result) = 0;
  // OK if the sequence was closed after its last command.
  virtual void OnEnd(absl::Status status) = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_EVENT_SINK_H_
