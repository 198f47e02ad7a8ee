#ifndef RECURVE_SERVER_REQUESTS_CONVERT_H_
#define RECURVE_SERVER_REQUESTS_CONVERT_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/serving/event_sink.h"
#include "engine/serving/request.h"
#include "engine/serving/sequence_state.h"
#include "engine/tokenizer/tokenizer.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// Conversions between the public messages and the engine's types. Errors are
// InvalidArgument and name the field; ranges are checked by the engine
// (engine/serving/request.h), once.

// The context for reading requests.
struct RequestContext {
  const Tokenizer* tokenizer;  // null: token ids only
  int64_t max_model_len;
  int64_t default_max_new_tokens;
  int64_t vocab_size;
};

// One prompt and what to do with it, read from a message of any interface and
// not encoded yet.
struct RequestInput {
  // Ids, or text; unset: the request has no prompt.
  std::variant<std::monostate, std::vector<int32_t>, std::string> prompt;
  SequenceOptions options;
  // The state that the prompt continues, by id or name; empty: none. `from` is
  // what that is.
  std::string from_state;
  SequenceStatePtr from;
  std::optional<uint64_t> seed;  // absent: one is drawn
  std::optional<int64_t> max_new_tokens;
  int32_t prompt_logprobs = -1;  // Command::prompt_logprobs
  // 0 is a max_new_tokens without prompt_logprobs, too: the prompt is the
  // answer.
  bool may_generate_none = false;

  int64_t text_bytes() const {
    const auto* const text = std::get_if<std::string>(&prompt);
    return text == nullptr ? 0 : static_cast<int64_t>(text->size());
  }
};
absl::StatusOr<RequestInput> FromProto(const v1::GenerateRequest& request,
                                       const RequestContext& context);

// A request as the engine takes it, without its sink.
struct GenerateInput {
  SequenceOptions options;
  Command command;
  std::string prompt_name;  // of `names`
  SequenceStatePtr from;    // null: none
  bool sample = false;      // Engine::Submission::sample
};
// The `index`-th of several that are to be generated for one input: the first
// has its seed, the others one that is derived from it.
GenerateInput SampleOf(const GenerateInput& input, int index);
// Encodes text, fills in defaults and draws a seed. Takes the prompt.
absl::StatusOr<GenerateInput> Complete(RequestInput input,
                                       const RequestContext& context,
                                       const FieldNames& names);

// What Decode calls its fields.
FieldNames DecodeFieldNames();

// A seed for a request that names none.
uint64_t RandomSeed();

// Limit on an answer in one piece, in tokens, where a log-probability counts as
// several: until it is sent, that of a token takes some 200 bytes, a token
// itself far less.
inline constexpr int64_t kMaxWholeTokens = int64_t{2} << 20;
inline constexpr int64_t kLogprobTokens = 8;

// For the first command of a Decode call, which carries the options; without
// the seed.
absl::StatusOr<SequenceOptions> OptionsFromProto(
    const v1::DecodeRequest& request, const RequestContext& context);
// DecodeRequest::rollback_to; what is too large to be a position is the
// largest.
std::optional<int64_t> RollbackOf(const v1::DecodeRequest& request);

// `position`: the number of tokens that the sequence holds.
absl::StatusOr<Command> CommandFromProto(const v1::DecodeRequest& request,
                                         int64_t position,
                                         const RequestContext& context);
// InvalidArgument if a later command sets an option of the first.
absl::Status CheckNoOptions(const v1::DecodeRequest& request);

// Adds a step's token and text to `tokens`.
void AppendStep(const StepEvent& event, bool with_logprobs, v1::Tokens* tokens);
// An upper bound on the bytes that this adds to a message.
int64_t StepBytes(const StepEvent& event, bool with_logprobs);
// Adds the log-probabilities of a step's prompt tokens; and an upper bound on
// the bytes that this adds.
void AppendPrompt(const StepEvent& event, v1::PromptLogprobs* prompt);
int64_t PromptBytes(const StepEvent& event);
// Adds text without a token; `index` tokens were generated before it.
void AppendText(int64_t index, absl::string_view text, v1::Tokens* tokens);
v1::FinishReason ToProto(FinishReason reason);
v1::Usage UsageToProto(const CommandResult& result);

// The public form of request ids: 16 hexadecimal digits.
std::string FormatRequestId(uint64_t id);
absl::StatusOr<uint64_t> ParseRequestId(const std::string& text);

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_CONVERT_H_
