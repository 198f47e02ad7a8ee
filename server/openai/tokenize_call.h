#ifndef RECURVE_SERVER_OPENAI_TOKENIZE_CALL_H_
#define RECURVE_SERVER_OPENAI_TOKENIZE_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/http_reply.h"
#include "server/openai/openai.h"
#include "server/requests/request_call.h"

namespace recurve {

// Limit on the tokens of a request or an answer.
inline constexpr int64_t kMaxTokenized = int64_t{1} << 20;

// One request of POST /tokenize, text to token ids as for a prompt, or of POST
// /detokenize, ids to text. The forms are vLLM's. Long ones are converted in
// their turn, as long prompts are encoded.
//
// Lifetime and thread safety: RequestCall; it has one part, and never a
// sequence.
class TokenizeCall : public RequestCall, public HttpListener {
 public:
  // `back`: /detokenize.
  TokenizeCall(const CallEnvironment& environment,
               const std::string& model_name, std::shared_ptr<HttpReply> reply,
               bool back);

  // Answers the request, or refuses it.
  void Begin(const HttpRequest& request);

  void OnWritten() override {}
  void OnProgress() override {}
  void OnDone(const absl::Status& status) override { Leave(status); }

 private:
  std::optional<ApiError> Read(const HttpRequest& request);
  std::optional<ApiError> ReadBody(const std::string& body);
  // The body of the answer.
  absl::StatusOr<std::string> Convert() const;
  absl::StatusOr<std::string> Tokenize() const;
  std::string Detokenize() const;
  // Sends what `answer` holds.
  void Finish(absl::StatusOr<std::string> answer);
  void Refuse(ApiError error);
  std::shared_ptr<TokenizeCall> self() {
    return std::static_pointer_cast<TokenizeCall>(shared_from_this());
  }

  const std::string& model_name_;
  const std::shared_ptr<HttpReply> reply_;
  const bool back_;
  std::string prompt_;
  std::vector<int32_t> tokens_;
  bool add_special_tokens_ = true;
  bool return_token_strs_ = false;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_TOKENIZE_CALL_H_
