#ifndef RECURVE_SERVER_OPENAI_COMPLETION_CALL_H_
#define RECURVE_SERVER_OPENAI_COMPLETION_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/http/http_reply.h"
#include "server/openai/api_format.h"
#include "server/openai/openai.h"
#include "server/requests/request_call.h"

namespace recurve {

// One request of a path that generates, whose ApiFormat it has: the counterpart
// of GenerateCall, for one or more prompts at a time, each a separate sequence.
// The answer is JSON, or server-sent events.
//
// A streamed answer begins when the engine has accepted the request, and is
// pinged while there is no output, so that no proxy times out while the request
// is queued. Earlier errors have an HTTP status, later ones are an event. A
// client that reads slowly gets fewer, larger events and pauses its sequences,
// as over gRPC.
//
// Lifetime and thread safety: RequestCall. Each prompt is a part.
class CompletionCall : public RequestCall, public HttpListener {
 public:
  CompletionCall(const CallEnvironment& environment,
                 const std::string& model_name,
                 std::unique_ptr<ApiFormat> format,
                 std::shared_ptr<HttpReply> reply);
  ~CompletionCall() override;

  // Reads the request and submits it, or refuses it.
  void Begin(const HttpRequest& request);

  void OnWritten() override;
  void OnProgress() override;
  void OnDone(const absl::Status& status) override;

 private:
  // One prompt and its completion.
  class Choice;

  // Parses the body into request_ and choices_.
  std::optional<ApiError> Read(const HttpRequest& request);
  // Makes and encodes the prompts, which makes inputs_. The error is that of
  // the first that cannot be; ranges are checked later, those of all together.
  std::optional<ApiError> PrepareAll();
  // Has the engine check inputs_, and submits them, unless there is an error
  // already. Refuses the request on an error.
  void Go(std::optional<ApiError> error);
  std::optional<ApiError> SubmitInputs();
  void Refuse(ApiError error);
  // The text of a prompt that is shown: `text` as it came, or what the ids
  // decode to.
  std::string PromptText(const RequestInput& prompt,
                         absl::Span<const int32_t> ids) const;
  // An error if an unstreamed answer could become too large.
  absl::Status CheckWholeSize(
      absl::Span<const Engine::Submission> submissions) const;
  std::shared_ptr<CompletionCall> self() {
    return std::static_pointer_cast<CompletionCall>(shared_from_this());
  }
  // Takes the state of a choice whose output is whole, and ends its sequence.
  void KeepState(Choice& choice);
  // Releases the states that were kept and not shown.
  void ReleaseUnshown();
  absl::StatusOr<StateInfo> AddState(SequenceStatePtr state);
  void Pump();
  std::optional<ApiError> FirstError() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string EventsOfAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string LastEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The unstreamed answer, once all choices have ended.
  HttpResponse WholeAnswer();
  // {"id", "object", "created", "model"}; the rest is added later.
  nlohmann::json AnswerJson(bool event) const;
  nlohmann::json TotalUsage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds tokens of the prompt of choice `index` to it and to its samples.
  void AddPrompt(int index, std::vector<StepEvent::PromptLogprob> tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ids to be resumed after their output was taken.
  std::vector<uint64_t> TakeStalled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Includes headers_.
  HttpResponse ErrorAnswer(const ApiError& error) const;

  const std::string& model_name_;
  const std::unique_ptr<ApiFormat> format_;
  const std::shared_ptr<HttpReply> reply_;
  const int64_t created_;  // seconds since 1970

  // Set before the engine knows of the call, then constant.
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::vector<std::string> request_id_;
  CompletionRequest request_;
  std::vector<GenerateInput>
      inputs_;  // one per prompt, until the engine has them
  std::vector<std::unique_ptr<Choice>> choices_;
  std::string from_id_;  // of the state that the prompts go on from
  std::string id_;       // cmpl-…, chatcmpl-…
  std::vector<std::pair<std::string, std::string>> headers_;  // for any answer

  bool streaming_ ABSL_GUARDED_BY(mu_) = false;  // the answer has begun
  bool gone_ ABSL_GUARDED_BY(mu_) = false;       // OnDone was called
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_COMPLETION_CALL_H_
