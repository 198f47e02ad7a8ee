#ifndef RECURVE_SERVER_OPENAI_COMPLETION_CALL_H_
#define RECURVE_SERVER_OPENAI_COMPLETION_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/http/http_reply.h"
#include "server/openai/openai.h"
#include "server/requests/stream_call.h"

namespace recurve {

// One request of POST /v1/completions: what GenerateCall is over gRPC, for one
// or more prompts at a time, each a sequence of its own. The answer is JSON, or
// server-sent events.
//
// A streamed answer begins when the engine has taken the request in, and is
// pinged while it has nothing to say, so that no proxy gives it up while it
// waits in the queue. What fails before that has a status of its own, what
// fails later an event. A client that reads slowly gets fewer, larger events
// and pauses its sequences, as over gRPC.
//
// Lifetime: the reply holds the object until OnDone, the engine until OnEnd of
// each sequence. Thread safety: mu_ guards all state; the engine and the reply
// are never called with mu_ held.
class CompletionCall : public HttpListener,
                       public std::enable_shared_from_this<CompletionCall> {
 public:
  CompletionCall(const CallEnvironment& environment,
                 const std::string& model_name,
                 std::shared_ptr<HttpReply> reply);
  ~CompletionCall() override;

  // Reads the request and submits it, or refuses it.
  void Begin(const HttpRequest& request);

  void OnWritten() override;
  void OnProgress() override;
  void OnDone(const absl::Status& status) override;

 private:
  // One prompt and what becomes of it.
  class Choice;

  // Reads the body, which makes request_ and choices_.
  std::optional<ApiError> Read(const HttpRequest& request);
  // Encodes the prompts and checks them, which makes inputs_. An error is that
  // of the first prompt that has one.
  std::optional<ApiError> PrepareAll();
  // Checks prompt `index`.
  absl::StatusOr<GenerateInput> Prepare(size_t index);
  // Gives inputs_ to the engine, unless there is an error already. Refuses the
  // request where there is one.
  void Go(std::optional<ApiError> error);
  std::optional<ApiError> Submit(std::vector<GenerateInput> inputs);
  void Refuse(ApiError error);
  // An error when an answer that is not streamed could become too large.
  std::optional<ApiError> CheckWholeSize(
      const std::vector<GenerateInput>& inputs) const;
  Flow flow() const { return tenant_ == nullptr ? Flow() : tenant_->flow(); }
  // Takes a stream of the tenant for each prompt, or none.
  absl::Status OpenStreams();
  // Takes what all prompts need off the tenant's quotas, or nothing; their
  // streams first, unless they have them.
  absl::Status Charge(const std::vector<GenerateInput>& inputs);
  void Pump();
  std::optional<ApiError> FirstError() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string EventsOfAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string LastEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The answer that is not streamed, once all has ended.
  HttpResponse WholeAnswer();
  nlohmann::json TotalUsage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether there is anything of use in what is left of the choice's output.
  // What never will be is dropped.
  bool HasContent(Choice& choice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those that must be resumed after their output was taken.
  std::vector<uint64_t> TakeStalled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With headers_.
  HttpResponse ErrorAnswer(const ApiError& error) const;
  void CancelAll(const absl::Status& status);

  const CallEnvironment& environment_;
  const std::string& model_name_;
  const std::shared_ptr<HttpReply> reply_;
  const int64_t created_;  // seconds since 1970

  // Set before the engine knows of the call, then constant.
  std::shared_ptr<Tenant> tenant_;  // null on a server without keys
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::vector<std::string> request_id_;
  CompletionRequest request_;
  std::vector<GenerateInput>
      inputs_;  // one a prompt, until the engine has them
  std::vector<std::unique_ptr<Choice>> choices_;
  std::string id_;                                            // cmpl-…
  std::vector<std::pair<std::string, std::string>> headers_;  // of any answer

  Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;    // output may go
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;   // counted as such
  bool streaming_ ABSL_GUARDED_BY(mu_) = false;  // the answer has begun
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;         // nothing more is to be said
  bool has_streams_ ABSL_GUARDED_BY(mu_) = false;  // of its tenant
  // When the client should come back, if a quota refuses it.
  std::optional<std::chrono::milliseconds> retry_after_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_COMPLETION_CALL_H_
