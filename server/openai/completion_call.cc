#include "server/openai/completion_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

// Limit on an unstreamed answer, in tokens. Until it is sent, each logprob of a
// token takes some 200 bytes, a token itself far less.
constexpr int64_t kMaxWholeTokens = int64_t{2} << 20;
constexpr int64_t kLogprobTokens = 8;

// A comment in server-sent events, which readers ignore.
constexpr char kPing[] = ": waiting\n\n";

std::string Event(const nlohmann::json& value) {
  return absl::StrCat("data: ", ToText(value), "\n\n");
}

}  // namespace

// The engine's view of one prompt. All members but the constants are guarded by
// the call's mu_.
class CompletionCall::Choice : public EventSink {
 public:
  Choice(CompletionCall* call, int index) : call_(call) {
    piece_.index = index;
  }

  void OnAdmitted(double) override {}

  bool OnStep(StepEvent event) override {
    bool room;
    {
      MutexLock lock(&call_->mu_);
      if (event.has_token) {
        ticket_.CountToken();
        ++completion_tokens_;
        piece_.last_token = event.token;
      }
      if (piece_.tokens.ids_size() == 0 && piece_.tokens.text().empty()) {
        piece_bytes_ = 0;  // the previous piece is sent
      }
      piece_bytes_ += StepBytes(event, with_logprobs_);
      AppendStep(event, with_logprobs_, &piece_.tokens);
      // A single answer at the end does not wait for a reader; CheckWholeSize
      // limits its size.
      stalled_ = call_->request_.stream &&
                 (piece_.tokens.ids_size() >=
                      call_->environment_.max_buffered_tokens ||
                  piece_bytes_ >= call_->environment_.max_buffered_bytes);
      room = !stalled_;
    }
    call_->Pump();
    return room;
  }

  void OnCommandDone(CommandResult result) override {
    {
      MutexLock lock(&call_->mu_);
      AppendText(result.completion_tokens, result.text, &piece_.tokens);
      piece_.finished.emplace();
      piece_.finished->set_reason(ToProto(result.reason));
      piece_.finished->set_stop_string(result.stop_string);
      *piece_.finished->mutable_usage() = UsageToProto(result);
      completion_tokens_ = result.completion_tokens;
    }
    call_->Pump();
  }

  void OnEnd(absl::Status status) override {
    bool unread = false;
    {
      MutexLock lock(&call_->mu_);
      // This is how the engine ends a stream whose client does not read.
      unread = call_->streaming_ && call_->write_in_flight_ &&
               absl::IsResourceExhausted(status);
      end_ = std::move(status);
    }
    if (unread) call_->reply_->Drop();
    call_->Pump();
  }

 private:
  friend class CompletionCall;

  CompletionCall* const call_;
  // Set before the engine knows of the choice, then constant.
  bool with_logprobs_ = false;
  int64_t prompt_tokens_ = 0;

  StreamTicket ticket_;
  std::optional<uint64_t> id_;  // of the sequence
  ChoicePiece piece_;           // output not sent yet
  int64_t piece_bytes_ = 0;     // size of its tokens
  TextOffsets text_offsets_;
  int64_t completion_tokens_ = 0;
  bool stalled_ = false;
  std::optional<absl::Status> end_;
};

CompletionCall::CompletionCall(const CallEnvironment& environment,
                               const std::string& model_name,
                               std::shared_ptr<HttpReply> reply)
    : environment_(environment),
      model_name_(model_name),
      reply_(std::move(reply)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {
  environment_.open_streams->fetch_add(1);
}

CompletionCall::~CompletionCall() { environment_.open_streams->fetch_sub(1); }

void CompletionCall::Begin(const HttpRequest& request) {
  reply_->Listen(shared_from_this());
  request_id_ = request.request_id;
  deadline_ = request.deadline;
  if (!request_id_.empty()) {
    headers_.emplace_back(kRequestIdHeader, request_id_[0]);
  }
  if (std::optional<ApiError> error = Read(request)) {
    return Refuse(*std::move(error));
  }
  int64_t bytes = 0;
  for (const RequestInput& prompt : request_.prompts) {
    bytes += prompt.text_bytes();
  }
  if (bytes <= EncodeThreads::kShortBytes) return Go(PrepareAll());
  // A text waiting to be encoded counts as open, as over gRPC.
  absl::Status status = OpenStreams();
  if (!status.ok()) return Refuse(ErrorOf(status));
  status = environment_.encode_threads->Add(
      this, flow(), bytes, [self = shared_from_this()] {
        const absl::Status accepts =
            self->environment_.engine->CheckAccepts(self->flow());
        self->reply_->Continue([self, error = accepts.ok() ? self->PrepareAll()
                                                           : ErrorOf(accepts)] {
          self->Go(error);
        });
      });
  if (!status.ok()) Refuse(ErrorOf(status));
}

void CompletionCall::Refuse(ApiError error) {
  bool by_quota;
  {
    MutexLock lock(&mu_);
    over_ = true;
    by_quota = retry_after_.has_value();
    if (retry_after_ == kNeverRetry) {
      // With 429 clients would retry a request that can never succeed.
      error.status = 400;
      error.type = "invalid_request_error";
      error.code = "quota_exceeded";
      error.retry_after.reset();
    } else if (retry_after_) {
      error.retry_after = retry_after_;
    }
    for (const auto& choice : choices_) {
      if (!choice->id_) choice->ticket_.Refund();
      choice->ticket_.Close();
    }
  }
  environment_.metrics->OnRefused(
      RefusalReasonOf(error.cause, by_quota, *environment_.engine));
  reply_->Send(ErrorAnswer(error));
}

void CompletionCall::Go(std::optional<ApiError> error) {
  if (!error) error = Submit(std::move(inputs_));
  if (error) return Refuse(*std::move(error));
  {
    MutexLock lock(&mu_);
    started_ = true;
    accepted_ = true;
    environment_.accepted_streams->fetch_add(1);
  }
  Pump();
}

absl::Status CompletionCall::CheckWholeSize(
    absl::Span<const Engine::Submission> submissions) const {
  if (request_.stream) return absl::OkStatus();
  int64_t tokens = 0;
  for (const Engine::Submission& submission : submissions) {
    // One more for the chosen token.
    const int64_t logprobs = submission.options.sampling.num_logprobs + 1;
    tokens += submission.command.generate * (1 + kLogprobTokens * logprobs);
  }
  if (tokens <= kMaxWholeTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "max_tokens is ", submissions[0].command.generate, " for ",
      submissions.size(), " prompts: the answer may come to ", tokens,
      " tokens, where a logprob counts as ", kLogprobTokens,
      "; without stream at most ", kMaxWholeTokens, " are allowed"));
}

absl::Status CompletionCall::OpenStreams() {
  if (tenant_ == nullptr) return absl::OkStatus();
  MutexLock lock(&mu_);
  if (has_streams_) return absl::OkStatus();
  std::chrono::milliseconds retry_after = environment_.retry_pushback;
  absl::Status status =
      tenant_->OpenStreams(static_cast<int64_t>(choices_.size()), &retry_after);
  if (!status.ok()) {
    retry_after_ = retry_after;
    return status;
  }
  for (const auto& choice : choices_) choice->ticket_ = StreamTicket(tenant_);
  has_streams_ = true;
  return absl::OkStatus();
}

absl::Status CompletionCall::Approve(
    absl::Span<const Engine::Submission> submissions) {
  RECURVE_RETURN_IF_ERROR(CheckWholeSize(submissions));
  for (size_t i = 0; i < submissions.size(); ++i) {
    Choice& choice = *choices_[i];
    if (choice.with_logprobs_) {
      choice.text_offsets_ = TextOffsets(environment_.context.tokenizer,
                                         submissions[i].command.append);
    }
  }
  if (tenant_ == nullptr) return absl::OkStatus();
  for (const Engine::Submission& submission : submissions) {
    RECURVE_RETURN_IF_ERROR(
        tenant_->CheckPriority(submission.options.priority));
  }
  RECURVE_RETURN_IF_ERROR(OpenStreams());
  MutexLock lock(&mu_);
  std::chrono::milliseconds retry_after = environment_.retry_pushback;
  std::vector<StreamTicket*> all;
  std::vector<StreamTicket::Cost> costs;
  for (size_t i = 0; i < submissions.size(); ++i) {
    all.push_back(&choices_[i]->ticket_);
    costs.push_back(
        {choices_[i]->prompt_tokens_, submissions[i].command.generate});
  }
  absl::Status status = StreamTicket::ChargeAll(all, costs, &retry_after);
  if (absl::IsResourceExhausted(status)) retry_after_ = retry_after;
  return status;
}

std::optional<ApiError> CompletionCall::Read(const HttpRequest& request) {
  if (environment_.tenants != nullptr) {
    auto tenant =
        environment_.tenants->Authenticate(request.authorization, "header");
    if (!tenant.ok()) return ErrorOf(tenant.status());
    tenant_ = *std::move(tenant);
  }
  // First, so that a refusal under overload costs as little as possible.
  if (absl::Status status = environment_.engine->CheckAccepts(flow());
      !status.ok()) {
    return ErrorOf(status);
  }
  if (auto error = ParseCompletion(request.body, model_name_,
                                   environment_.engine->limits(), &request_)) {
    return error;
  }
  const size_t count = request_.prompts.size();
  const Engine& engine = *environment_.engine;
  if (static_cast<int64_t>(count) > engine.max_active()) {
    // Not 429, as for a full queue: a retry cannot succeed either.
    ApiError error;
    error.param = "prompt";
    error.message =
        absl::StrCat("prompt has ", count, " entries; this server takes ",
                     engine.options().max_num_seqs, " running and ",
                     engine.options().max_queued_requests, " waiting");
    return error;
  }
  for (size_t i = 0; i < count; ++i) {
    choices_.push_back(std::make_unique<Choice>(this, static_cast<int>(i)));
  }
  return std::nullopt;
}

std::optional<ApiError> CompletionCall::PrepareAll() {
  RequestContext context = environment_.context;
  context.default_max_new_tokens = kCompletionMaxTokens;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = *choices_[i];
    RequestInput& prompt = request_.prompts[i];
    choice.with_logprobs_ = prompt.options.sampling.num_logprobs >= 0;
    auto text = std::exchange(prompt.prompt, {});  // no longer needed then
    RequestInput taken = prompt;
    taken.prompt = std::move(text);
    absl::StatusOr<GenerateInput> input = Complete(
        std::move(taken), context, CompletionFieldNames(i, choices_.size()));
    if (!input.ok()) return ErrorOf(input.status());
    choice.prompt_tokens_ = static_cast<int64_t>(input->command.append.size());
    inputs_.push_back(*std::move(input));
  }
  return std::nullopt;
}

std::optional<ApiError> CompletionCall::Submit(
    std::vector<GenerateInput> inputs) {
  const size_t count = inputs.size();
  std::vector<Engine::Submission> submissions;
  for (size_t i = 0; i < count; ++i) {
    inputs[i].options.flow = flow();
    submissions.push_back(
        {std::move(inputs[i].options), std::move(inputs[i].command),
         /*close_when_done=*/true,
         // Shares the call's ownership: the engine keeps the call alive.
         std::shared_ptr<EventSink>(shared_from_this(), choices_[i].get()),
         deadline_, CompletionFieldNames(i, count),
         std::move(inputs[i].prompt_name)});
  }
  const auto accepted = environment_.engine->SubmitAll(
      std::move(submissions),
      [this](absl::Span<const Engine::Submission> valid) {
        return Approve(valid);
      });
  if (!accepted.ok()) return ErrorOf(accepted.status());
  std::vector<std::string> ids;
  MutexLock lock(&mu_);
  for (size_t i = 0; i < count; ++i) {
    choices_[i]->id_ = (*accepted)[i];
    ids.push_back(FormatRequestId((*accepted)[i]));
  }
  if (request_id_.empty()) {
    id_ = "cmpl-" + ids[0];
    headers_.emplace_back(kRequestIdHeader, id_);
  } else {
    id_ = "cmpl-" + request_id_[0];
  }
  headers_.emplace_back("recurve-request-id", absl::StrJoin(ids, ","));
  return std::nullopt;
}

void CompletionCall::OnWritten() {
  {
    MutexLock lock(&mu_);
    write_in_flight_ = false;
  }
  Pump();
}

// A slow reader may need longer for a piece of many tokens than the engine
// waits for a client that does not read.
void CompletionCall::OnProgress() {
  std::vector<uint64_t> behind;
  {
    MutexLock lock(&mu_);
    for (const auto& choice : choices_) {
      if (choice->stalled_ && choice->id_) behind.push_back(*choice->id_);
    }
  }
  for (const uint64_t id : behind) environment_.engine->GiveReaderTime(id);
}

void CompletionCall::OnDone(const absl::Status& status) {
  environment_.encode_threads->Remove(this);  // the client may have
                                              // disconnected
  {
    MutexLock lock(&mu_);
    over_ = true;
    if (std::exchange(accepted_, false)) {
      environment_.accepted_streams->fetch_sub(1);
    }
    for (const auto& choice : choices_) choice->ticket_.Close();
  }
  CancelAll(status.ok() ? absl::CancelledError("the answer is over") : status);
}

void CompletionCall::CancelAll(const absl::Status& status) {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& choice : choices_) {
      if (choice->id_ && !choice->end_) ids.push_back(*choice->id_);
    }
  }
  for (const uint64_t id : ids) environment_.engine->Cancel(id, status);
}

bool CompletionCall::AllEnded() const {
  for (const auto& choice : choices_) {
    if (!choice->end_) return false;
  }
  return true;
}

std::optional<ApiError> CompletionCall::FirstError() {
  for (const auto& choice : choices_) {
    if (choice->end_ && !choice->end_->ok()) return ErrorOf(*choice->end_);
  }
  return std::nullopt;
}

std::vector<uint64_t> CompletionCall::TakeStalled() {
  std::vector<uint64_t> ids;
  for (const auto& choice : choices_) {
    if (std::exchange(choice->stalled_, false)) ids.push_back(*choice->id_);
  }
  return ids;
}

nlohmann::json CompletionCall::TotalUsage() const {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  for (const auto& choice : choices_) {
    prompt_tokens += choice->prompt_tokens_;
    completion_tokens += choice->completion_tokens_;
  }
  return UsageJson(prompt_tokens, completion_tokens);
}

bool CompletionCall::HasContent(Choice& choice) {
  ChoicePiece& piece = choice.piece_;
  if (!piece.tokens.text().empty() || piece.finished) return true;
  if (piece.tokens.ids_size() == 0) return false;
  if (choice.with_logprobs_ || request_.continuous_usage ||
      request_.ShowsTokenIds(environment_.context.tokenizer)) {
    return true;
  }
  // Its text is held back, because it may begin a stop string, or there is
  // none. Keeping ids would eventually pause the sequence.
  piece.tokens.clear_ids();
  return false;
}

std::string CompletionCall::EventsOfAll() {
  std::string events;
  for (const auto& choice : choices_) {
    ChoicePiece& piece = choice->piece_;
    if (!HasContent(*choice)) continue;
    nlohmann::json json = CompletionJson(id_, created_, model_name_);
    json["choices"] = nlohmann::json::array(
        {ChoiceJson(piece, request_, environment_.context.tokenizer,
                    &choice->text_offsets_)});
    if (request_.continuous_usage) {
      json["usage"] = TotalUsage();
    } else if (request_.include_usage) {
      json["usage"] = nullptr;
    }
    events += Event(json);
    piece.tokens.Clear();
    piece.finished.reset();
  }
  return events;
}

std::string CompletionCall::LastEvents() {
  std::string events;
  if (request_.include_usage) {
    nlohmann::json json = CompletionJson(id_, created_, model_name_);
    json["choices"] = nlohmann::json::array();
    json["usage"] = TotalUsage();
    events += Event(json);
  }
  return events + "data: [DONE]\n\n";
}

HttpResponse CompletionCall::WholeAnswer() {
  MutexLock lock(&mu_);
  nlohmann::json json = CompletionJson(id_, created_, model_name_);
  json["choices"] = nlohmann::json::array();
  for (const auto& choice : choices_) {
    json["choices"].push_back(ChoiceJson(choice->piece_, request_,
                                         environment_.context.tokenizer,
                                         &choice->text_offsets_));
  }
  json["usage"] = TotalUsage();
  HttpResponse response;
  response.headers = headers_;
  response.body = ToText(json);
  return response;
}

HttpResponse CompletionCall::ErrorAnswer(const ApiError& error) const {
  HttpResponse response = ErrorResponse(error);
  response.headers.insert(response.headers.end(), headers_.begin(),
                          headers_.end());
  return response;
}

// Sends pending output, unless a write is in flight.
void CompletionCall::Pump() {
  enum { kNothing, kBegin, kWrite, kSend, kSendWhole } action = kNothing;
  bool finish = false;
  HttpResponse response;
  std::string piece;
  std::vector<uint64_t> resume;
  bool failed = false;
  {
    MutexLock lock(&mu_);
    if (!started_ || write_in_flight_ || over_) return;
    const std::optional<ApiError> error = FirstError();
    failed = error.has_value();
    const bool ended = failed || AllEnded();
    if (!request_.stream || (failed && !streaming_)) {
      if (!ended) return;
      action = failed ? kSend : kSendWhole;
      if (failed) response = ErrorAnswer(*error);
    } else {
      piece = EventsOfAll();
      resume = TakeStalled();
      if (failed) {
        piece += Event(ErrorJson(*error));
      } else if (ended) {
        piece += LastEvents();
      }
      finish = ended;
      if (!streaming_) {
        action = kBegin;
      } else if (!piece.empty()) {
        action = kWrite;
      }
      streaming_ = true;
      write_in_flight_ = action != kNothing;
      if (action == kBegin) {
        response.content_type = "text/event-stream; charset=utf-8";
        response.headers = headers_;
        response.headers.emplace_back("Cache-Control", "no-cache");
        // Makes nginx forward events without buffering.
        response.headers.emplace_back("X-Accel-Buffering", "no");
        response.ping = kPing;
        response.body = std::exchange(piece, "");
      }
    }
    if (ended) {
      over_ = true;
      // Before the client learns of the end, so that its next call finds its
      // place free.
      for (const auto& choice : choices_) choice->ticket_.Close();
    }
  }
  for (const uint64_t id : resume) environment_.engine->Resume(id);
  switch (action) {
    case kSend:
      reply_->Send(std::move(response));
      break;
    case kSendWhole:
      // Not on the engine's thread: building a long answer takes as long as
      // many steps, which would delay all streams. The call's state no longer
      // changes.
      reply_->SendMade(
          [self = shared_from_this()] { return self->WholeAnswer(); });
      break;
    case kBegin:
      reply_->Begin(std::move(response));
      break;
    case kWrite:
      reply_->Write(std::move(piece));
      break;
    case kNothing:
      break;
  }
  if (finish) reply_->Finish();
  if (failed) CancelAll(absl::CancelledError("another prompt failed"));
}

}  // namespace recurve
