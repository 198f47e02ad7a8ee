#include "client/lib/generation.h"

#include "absl/strings/str_cat.h"

namespace recurve {

absl::Status Generation::AddPrompt(const v1::PromptLogprobs& part) {
  const auto next = static_cast<uint32_t>(prompt.ids_size() + 1);
  if (part.index() != next || part.ids_size() != part.logprobs_size()) {
    return absl::DataLossError(absl::StrCat(
        "log-probabilities of the prompt are of ", part.logprobs_size(),
        " tokens from position ", part.index(), " on; expected ",
        part.ids_size(), " from ", next, " on"));
  }
  prompt.set_index(1);
  prompt.mutable_ids()->MergeFrom(part.ids());
  prompt.mutable_logprobs()->MergeFrom(part.logprobs());
  return absl::OkStatus();
}

absl::Status Generation::AddTokens(const v1::Tokens& tokens) {
  if (tokens.index() != token_ids.size()) {
    return absl::DataLossError(
        absl::StrCat("tokens event starts at index ", tokens.index(), ", but ",
                     token_ids.size(), " tokens came before it"));
  }
  token_ids.insert(token_ids.end(), tokens.ids().begin(), tokens.ids().end());
  text += tokens.text();
  logprobs.insert(logprobs.end(), tokens.logprobs().begin(),
                  tokens.logprobs().end());
  return absl::OkStatus();
}

absl::Status Generation::Add(const v1::GenerateEvent& event) {
  if (finished) return absl::DataLossError("an event follows the finished one");
  switch (event.event_case()) {
    case v1::GenerateEvent::kAdmitted:
      request_id = event.admitted().request_id();
      seed = event.admitted().seed();
      return absl::OkStatus();
    case v1::GenerateEvent::kPromptLogprobs:
      return AddPrompt(event.prompt_logprobs());
    case v1::GenerateEvent::kTokens:
      return AddTokens(event.tokens());
    case v1::GenerateEvent::kFinished:
      finished = true;
      end = event.finished();
      if (end.usage().completion_tokens() != token_ids.size()) {
        return absl::DataLossError(absl::StrCat(
            "the server counts ", end.usage().completion_tokens(),
            " generated tokens, but ", token_ids.size(), " were received"));
      }
      return absl::OkStatus();
    case v1::GenerateEvent::EVENT_NOT_SET:
      // An event of a newer server: to be skipped, as the proto says.
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Generation::CheckFinished() const {
  if (finished) return absl::OkStatus();
  return absl::DataLossError(
      "the stream ended with OK, but without a finished event");
}

std::string FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_EOS:
      return "eos";
    case v1::FINISH_REASON_STOP_TOKEN:
      return "stop_token";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop_string";
    default:
      return absl::StrCat("unknown(", static_cast<int>(reason), ")");
  }
}

}  // namespace recurve
