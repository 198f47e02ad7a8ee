#ifndef RECURVE_CLIENT_LIB_GENERATION_H_
#define RECURVE_CLIENT_LIB_GENERATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// The accumulated result of one Generate stream.
// Thread safety: none; events of a stream arrive one at a time.
struct Generation {
  std::string request_id;
  uint64_t seed = 0;
  std::vector<uint32_t> token_ids;
  std::string text;
  // One for each token if the request asked for them, else empty.
  std::vector<v1::TokenLogprob> logprobs;
  // The prompt's tokens from the second on, and their log-probabilities, if the
  // request asked for these.
  v1::PromptLogprobs prompt;
  // From the finished event; defaults before that.
  bool finished = false;
  v1::Finished end;

  // Adds one event. DataLoss if it does not continue the events before it:
  // tokens are numbered without gaps, nothing follows the finished event, and
  // its token count matches the tokens received.
  absl::Status Add(const v1::GenerateEvent& event);

  // DataLoss unless the finished event arrived. For streams whose status is OK.
  absl::Status CheckFinished() const;

 private:
  absl::Status AddPrompt(const v1::PromptLogprobs& part);
  absl::Status AddTokens(const v1::Tokens& tokens);
};

// "length", "eos", "stop_token", "stop_string", or "unknown(N)".
std::string FinishReasonName(v1::FinishReason reason);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_GENERATION_H_
