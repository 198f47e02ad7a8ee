#ifndef RECURVE_SERVER_OPENAI_OPENAI_H_
#define RECURVE_SERVER_OPENAI_OPENAI_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/serving/request.h"
#include "engine/serving/state_store.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json_fwd.hpp"
#include "recurve/v1/inference.pb.h"
#include "server/http/http_reply.h"
#include "server/requests/convert.h"

namespace recurve {

// The JSON of OpenAI's completions API (docs/http.md), read into the same input
// as a request over gRPC, so that it is checked and run like one. Nothing here
// throws.

// An error in the API's format.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field at fault; empty: null
  std::string code;   // empty: null
  std::optional<std::chrono::milliseconds> retry_after;
  absl::Status cause = absl::InvalidArgumentError("");
};
// The error for a status of the engine, the quotas or convert.h, whose fields
// have their names in this API (CompletionFieldNames).
ApiError ErrorOf(const absl::Status& status);
nlohmann::json ErrorJson(const ApiError& error);
HttpResponse ErrorResponse(const ApiError& error);

struct CompletionRequest {
  std::vector<RequestInput>
      prompts;  // at least one; `samples` choices for each
  int samples = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // in every event
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // in logprobs, "token_id:65" instead of "A"
  bool echo = false;           // the prompt before its completion
  bool shows_prompt_logprobs = false;  // the field `prompt_logprobs`
  std::string request_id;              // the client's; empty: none in the body
  bool keep_state = false;             // of the end of each choice

  // A model without a tokenizer has only token ids to show.
  bool ShowsTokenIds(const Tokenizer* tokenizer) const {
    return return_token_ids || tokenizer == nullptr;
  }
};
// The choices of a request: `samples` of the first prompt, then of the next.
inline constexpr int kMaxChoices = 64;
// What this API calls the fields of prompt `index` of `count`.
FieldNames CompletionFieldNames(size_t index, size_t count);
inline constexpr int kMaxPrompts = 64;
// The longest id that a client may give its request.
inline constexpr size_t kMaxRequestIdBytes = 128;
// The API's default for max_tokens.
inline constexpr int kCompletionMaxTokens = 16;

// Reads the body of a request. An error names the field, its value and what is
// expected. Reading a prompt stops after `limits.max_model_len` token ids.
std::optional<ApiError> ParseCompletion(absl::string_view body,
                                        const std::string& model_name,
                                        const RequestLimits& limits,
                                        CompletionRequest* request);

// The contents of one choice, or of a part of it.
struct ChoicePiece {
  int index = 0;
  // The prompt, before anything else of the choice: its text, and the first
  // token, which has no log-probability.
  struct Echo {
    std::string text;
    int32_t first_token = 0;
  };
  std::optional<Echo> echo;
  std::vector<StepEvent::PromptLogprob> prompt;  // further tokens of it
  v1::Tokens tokens;
  std::optional<v1::Finished> finished;
  int32_t last_token = 0;        // the one that finished it
  std::optional<uint64_t> seed;  // to be shown
  // The state of its end, if it was asked for, or why there is none.
  std::optional<absl::StatusOr<StateInfo>> kept;
};
// Where tokens begin in a choice's text. One thread at a time.
class TextOffsets {
 public:
  // All offsets are 0.
  TextOffsets() = default;
  // As above if `tokenizer` is null; it must outlive this object. `prompt`
  // decides whether the first token begins a text.
  TextOffsets(const Tokenizer* tokenizer, absl::Span<const int32_t> prompt,
              bool special_tokens = false);

  // Characters of the text that are complete before the next token, `id`.
  int64_t Next(int32_t id);

 private:
  std::optional<StreamDecoder> decoder_;
  int64_t characters_ = 0;
};

// `offsets` has seen the tokens of the previous pieces; `tokenizer` may be
// null.
nlohmann::json ChoiceJson(const ChoicePiece& piece,
                          const CompletionRequest& request,
                          const Tokenizer* tokenizer, TextOffsets* offsets);

// Says in a choice that has ended which state was kept of it, if that was asked
// for.
void AddKept(const ChoicePiece& piece, nlohmann::json* choice);

// A token as text: "token_id:65" without a text of its own, or if `tokenizer`
// is null; "bytes:\xe2" if it is not of whole characters.
std::string TokenText(int32_t id, const Tokenizer* tokenizer);

nlohmann::json UsageJson(int64_t prompt_tokens, int64_t completion_tokens,
                         int64_t cached_tokens, bool approximate);

nlohmann::json ModelsJson(const std::string& model_name, int64_t created,
                          int64_t max_model_len);

std::string ToText(const nlohmann::json& value);

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_OPENAI_H_
