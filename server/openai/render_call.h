#ifndef RECURVE_SERVER_OPENAI_RENDER_CALL_H_
#define RECURVE_SERVER_OPENAI_RENDER_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "server/http/http_reply.h"
#include "server/openai/api_format.h"
#include "server/openai/openai.h"
#include "server/requests/request_call.h"

namespace recurve {

// One prompt as the engine would get it, in the form that vLLM's render
// endpoints have: {"request_id", "token_ids", "sampling_params", "model",
// "stream", "priority", …}. `request`: the request that it is of.
nlohmann::json RenderedJson(const std::string& request_id,
                            const GenerateInput& input,
                            const CompletionRequest& request,
                            const std::string& model_name);

// One request of POST /v1/completions/render or /v1/chat/completions/render:
// takes the body of a completion, and answers what its prompts become; nothing
// runs. Long texts are encoded in their turn.
//
// Lifetime and thread safety: RequestCall; it has one part, and never a
// sequence.
class RenderCall : public RequestCall, public HttpListener {
 public:
  RenderCall(const CallEnvironment& environment, const std::string& model_name,
             std::unique_ptr<ApiFormat> format,
             std::shared_ptr<HttpReply> reply);

  // Answers the request, or refuses it.
  void Begin(const HttpRequest& request);

  void OnWritten() override {}
  void OnProgress() override {}
  void OnDone(const absl::Status& status) override { Leave(status); }

 private:
  std::optional<ApiError> Read(const HttpRequest& request);
  // The body of the answer, or an error.
  using Answer = std::variant<std::string, ApiError>;
  Answer Render();
  void Finish(Answer answer);
  void Refuse(ApiError error);
  std::shared_ptr<RenderCall> self() {
    return std::static_pointer_cast<RenderCall>(shared_from_this());
  }

  const std::string& model_name_;
  const std::unique_ptr<ApiFormat> format_;
  const std::shared_ptr<HttpReply> reply_;
  std::string request_id_;  // cmpl-…, chatcmpl-…
  CompletionRequest request_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_RENDER_CALL_H_
