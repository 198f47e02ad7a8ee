#ifndef RECURVE_ENGINE_SERVING_REQUEST_H_
#define RECURVE_ENGINE_SERVING_REQUEST_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/sampling/sampling.h"

namespace recurve {

// With the names and the meaning that vLLM gives them.
struct StoppingParams {
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop_strings;
  bool ignore_eos = false;
  // The first `min_tokens` generated tokens of the sequence end nothing:
  // end-of-sequence tokens (with ignore_eos, too) and stop_token_ids cannot be
  // drawn, and a stop string that they complete is text.
  int64_t min_tokens = 0;
  // The text has the stop string that ended it, or the text of the stop token.
  bool include_stop_str_in_output = false;
  // Special tokens are no text; if false, each is spelled as the tokenizer's
  // files do.
  bool skip_special_tokens = true;
};

// The owner of a sequence. Flows share steps, memory and places by weight.
struct Flow {
  uint32_t id = 0;
  double weight = 1;  // above 0
  double part = 1;    // its weight divided by the sum over all flows
};

// Options that hold for the whole life of a sequence.
struct SequenceOptions {
  SamplingParams sampling;  // the seed is set: by the caller, if the request
                            // has none
  StoppingParams stopping;
  int32_t priority = 0;
  Flow flow;
  // Divides the prefix cache of the flow: only prompts of equal keys share.
  std::string cache_key;
  // Where the prefix cache is asked to take snapshots of the first command's
  // tokens: numbers of first tokens. At most kMaxNamedSnapshots.
  std::vector<int64_t> snapshot_at;
};

// Which rows of logits a command returns; see LogitsMode in inference.proto.
enum class LogitsMode { kNone, kNext, kAll };

// One unit of work on a sequence: go back to a kept point, append tokens,
// generate, keep the point reached.
struct Command {
  std::vector<int32_t> append;
  int64_t generate = 0;
  LogitsMode logits = LogitsMode::kNone;
  // A kept point of the sequence: a number of tokens. What came after it is
  // forgotten, later points too.
  std::optional<int64_t> rollback_to = std::nullopt;
  bool keep = false;
  // Log-probabilities of the appended tokens, each as the model predicts it
  // from those before it, so not of a sequence's first: -1: none; n >= 0: the
  // token's, and those of the n likeliest. They are of the raw logits: no
  // penalty, bias or mask applies. Only for a first command, without a state to
  // continue; nothing of it is taken from the prefix cache.
  int32_t prompt_logprobs = -1;
};

// The limits of a request.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;  // tokens of a sequence, including generated ones
  bool has_tokenizer = false;
  // For a model that processes a prompt as a whole, in one step: the maximum
  // number of tokens that the first command may append, also if it wants the
  // logits of all. 0: no limit.
  int64_t max_prompt_tokens = 0;
  int64_t max_prompt_logits = 0;
  int64_t max_scored_prompt = 0;  // also if it wants prompt_logprobs
  absl::Span<const int32_t> eos_token_ids = {};  // the model's; outlives this
};

// The maximum that a request may ask for, with any model.
inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxStopTokenIds = 64;
// Stop tokens and end-of-sequence tokens of a request with min_tokens.
inline constexpr int kMaxMaskedTokens = 128;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxLogitBias = 1024;
inline constexpr int kMaxPriority = 100;
inline constexpr int kMaxCacheKeyBytes = 256;
inline constexpr int kMaxNamedSnapshots = 4;
inline constexpr int kMaxSamples = 16;     // of one prompt
inline constexpr int kMaxKeptPoints = 16;  // of a sequence, at a time

// The allowed range of a sampling option, both ends included.
struct OptionRange {
  float min;
  float max;
};
inline constexpr OptionRange kTemperatureRange = {0, 100};
// Every value above 0 that a float can represent.
inline constexpr OptionRange kTopPRange = {
    std::numeric_limits<float>::denorm_min(), 1};
inline constexpr char kTopPExpected[] = "above 0, at most 1";
inline constexpr OptionRange kMinPRange = {0, 1};
inline constexpr OptionRange kRepetitionPenaltyRange = {0.01f, 10};
// For presence_penalty and frequency_penalty.
inline constexpr OptionRange kPenaltyRange = {-2, 2};
inline constexpr OptionRange kLogitBiasRange = {-100, 100};

// What an interface calls the fields of a request, for its errors: those of
// recurve.v1.GenerateRequest by default.
struct FieldNames {
  std::string append_ids = "prompt_ids";  // Command::append, as ids
  std::string append_text = "prompt_text";
  std::string generate = "stopping.max_new_tokens";
  // In front of the names of their members.
  std::string sampling = "sampling.";
  std::string stopping = "stopping.";
  std::string stop_strings = "stop_strings";  // behind `stopping`
  std::string prompt_logprobs = "prompt_logprobs";
  std::string cache_key = "cache_key";
  std::string snapshot_at = "snapshot_at";
};

// The tokens that min_tokens keeps from being drawn; distinct, ascending. Empty
// without min_tokens.
std::vector<int32_t> MaskedTokens(const StoppingParams& stopping,
                                  absl::Span<const int32_t> eos_token_ids);

// InvalidArgument naming field, value and limit.
absl::Status ValidateOptions(const SequenceOptions& options,
                             const RequestLimits& limits,
                             const FieldNames& names = {});

// As above, for a min_tokens of a sequence with one command, which generates at
// most `generate` tokens.
absl::Status ValidateMinTokens(const SequenceOptions& options, int64_t generate,
                               const FieldNames& names);

// As above, for the places of `options` in a first command of `num_tokens`.
absl::Status ValidateSnapshots(const SequenceOptions& options,
                               int64_t num_tokens, const FieldNames& names);

// OutOfRange or ResourceExhausted for what a command wants of kept points;
// `kept` are those of the sequence, ascending; `field` has the point.
absl::Status ValidateKept(std::optional<int64_t> rollback_to, bool keep,
                          absl::Span<const int64_t> kept,
                          absl::string_view field = "rollback_to");

// InvalidArgument, as above, for a command on a sequence that holds
// `num_tokens` tokens. `append`: the name of Command::append, one of `names`.
absl::Status ValidateCommand(const Command& command, int64_t num_tokens,
                             const RequestLimits& limits,
                             absl::string_view append, const FieldNames& names);

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_REQUEST_H_
