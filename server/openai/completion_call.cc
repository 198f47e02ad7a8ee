#include "server/openai/completion_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/tokenizer/stream_decoder.h"
#include "nlohmann/json.hpp"
#include "server/openai/completion_choice.h"

namespace recurve {
namespace {

// A comment in server-sent events, which readers ignore.
constexpr char kPing[] = ": waiting\n\n";

// The error for what has to do with states, whose messages name no field.
ApiError ErrorOfState(const char* field, const absl::Status& status) {
  ApiError error = ErrorOf(status);
  error.message = absl::StrCat(field, ": ", error.message);
  error.param = field;
  return error;
}

std::string Event(const nlohmann::json& value) {
  return absl::StrCat("data: ", ToText(value), "\n\n");
}

}  // namespace

CompletionCall::CompletionCall(const CallEnvironment& environment,
                               const std::string& model_name,
                               std::unique_ptr<ApiFormat> format,
                               std::shared_ptr<HttpReply> reply)
    : RequestCall(environment),
      model_name_(model_name),
      format_(std::move(format)),
      reply_(std::move(reply)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

CompletionCall::~CompletionCall() = default;

absl::StatusOr<StateInfo> CompletionCall::AddState(SequenceStatePtr state) {
  StateOptions options;
  options.parent = from_id_;
  return environment_.engine->states().Add(state_owner(), std::move(state),
                                           options, std::nullopt);
}

void CompletionCall::KeepState(Choice& choice) {
  uint64_t id = 0;
  {
    MutexLock lock(&mu_);
    // A short output may be whole before its sequence has an id here: then
    // SubmitInputs comes back to it.
    if (!choice.part().id || !choice.unkept_ || choice.takes_state_) return;
    choice.takes_state_ = true;
    id = *choice.part().id;
  }
  Engine* const engine = environment_.engine;
  engine->TakeState(
      flow().id, id, std::nullopt,
      [self = self(), &choice, engine,
       id](absl::StatusOr<SequenceStatePtr> state) {
        absl::StatusOr<StateInfo> kept =
            state.ok() ? self->AddState(*std::move(state))
                       : absl::StatusOr<StateInfo>(state.status());
        bool wanted;
        {
          MutexLock lock(&self->mu_);
          wanted = choice.unkept_.has_value() && !self->over_ && !self->gone_;
          if (wanted) choice.kept_ = kept;
        }
        // No one would learn its name.
        if (!wanted && kept.ok()) {
          (void)engine->states().Release(self->flow().id, kept->id);
        }
        engine->Close(id);
      });
}

void CompletionCall::ReleaseUnshown() {
  std::vector<std::string> ids;
  {
    MutexLock lock(&mu_);
    for (const auto& choice : choices_) {
      if (choice->shown_kept_ || !choice->kept_ || !choice->kept_->ok())
        continue;
      ids.push_back((*choice->kept_)->id);
    }
  }
  for (const std::string& id : ids) {
    (void)environment_.engine->states().Release(flow().id, id);
  }
}

void CompletionCall::Begin(const HttpRequest& request) {
  reply_->Listen(self());
  request_id_ = request.request_id;
  deadline_ = request.deadline;
  if (!request_id_.empty()) {
    headers_.emplace_back(kRequestIdHeader, request_id_[0]);
  }
  if (std::optional<ApiError> error = Read(request)) {
    return Refuse(*std::move(error));
  }
  if (request_id_.empty() && !request_.request_id.empty()) {
    request_id_ = {request_.request_id};
    headers_.emplace_back(kRequestIdHeader, request_id_[0]);
  }
  const int64_t bytes = format_->PrepareBytes(request_);
  if (bytes <= EncodeThreads::kShortBytes) return Go(PrepareAll());
  // A text waiting to be encoded counts as open, as over gRPC.
  if (absl::Status status = OpenStreams(); !status.ok()) {
    return Refuse(ErrorOf(status));
  }
  Encode(bytes, [this](const absl::Status& status) {
    reply_->Continue(
        [self = self(), error = status.ok() ? PrepareAll() : ErrorOf(status)] {
          self->Go(error);
        });
  });
}

void CompletionCall::Refuse(ApiError error) {
  const std::optional<std::chrono::milliseconds> retry_after =
      Refused(error.cause);
  if (retry_after == kNeverRetry) {
    // With 429 clients would retry a request that can never succeed.
    error.status = 400;
    error.type = "invalid_request_error";
    error.code = "quota_exceeded";
    error.retry_after.reset();
  } else if (retry_after) {
    error.retry_after = retry_after;
  }
  {
    MutexLock lock(&mu_);
    over_ = true;
  }
  reply_->Send(ErrorAnswer(error));
}

void CompletionCall::Go(std::optional<ApiError> error) {
  if (!error) error = SubmitInputs();
  if (error) return Refuse(*std::move(error));
  {
    MutexLock lock(&mu_);
    started_ = true;
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
    if (!request_.echo && !request_.shows_prompt_logprobs) continue;
    // Shown in each choice.
    tokens += static_cast<int64_t>(submission.command.append.size()) *
              (1 + kLogprobTokens * (request_.prompts[0].prompt_logprobs + 1));
  }
  if (tokens <= kMaxWholeTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "max_tokens is ", submissions[0].command.generate, " for ",
      submissions.size(), " prompts",
      request_.echo || request_.shows_prompt_logprobs ? ", which are shown"
                                                      : "",
      ": the answer may come to ", tokens,
      " tokens, where a logprob counts as ", kLogprobTokens,
      "; without stream at most ", kMaxWholeTokens, " are allowed"));
}

std::optional<ApiError> CompletionCall::Read(const HttpRequest& request) {
  absl::Status status = Authenticate(request.authorization, "header");
  if (status.ok()) status = CheckAccepts();
  if (!status.ok()) return ErrorOf(status);
  if (auto error = format_->Parse(request.body, model_name_,
                                  environment_.engine->limits(), &request_)) {
    return error;
  }
  const size_t count = request_.prompts.size() * request_.samples;
  const Engine& engine = *environment_.engine;
  if (static_cast<int64_t>(count) > engine.max_active()) {
    // Not 429, as for a full queue: a retry cannot succeed either.
    ApiError error;
    error.param = "prompt";
    error.message = absl::StrCat(
        "prompt has ", count, " entries",
        request_.samples > 1 ? " times n" : "", "; this server takes ",
        engine.options().max_num_seqs, " running and ",
        engine.options().max_queued_requests, " waiting");
    return error;
  }
  SetParts(count);
  for (size_t i = 0; i < count; ++i) {
    choices_.push_back(std::make_unique<Choice>(this, static_cast<int>(i)));
    choices_.back()->writer_ = format_->NewWriter(
        request_, environment_.context.tokenizer, static_cast<int>(i));
  }
  return std::nullopt;
}

std::optional<ApiError> CompletionCall::PrepareAll() {
  if (request_.keep_state) {
    if (absl::Status status = environment_.engine->CheckStates();
        !status.ok()) {
      return ErrorOfState("keep_state", status);
    }
  }
  RequestContext context = environment_.context;
  if (auto error = format_->Prepare(context, &request_)) return error;
  context.default_max_new_tokens = format_->DefaultMaxTokens(context, request_);
  const int samples = request_.samples;
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    RequestInput& prompt = request_.prompts[i];
    RequestInput taken = prompt;
    if (!request_.echo) prompt.prompt = {};  // no longer needed
    const absl::StatusOr<SequenceStatePtr> from =
        FindState(taken.from_state, &taken.seed, &from_id_);
    if (!from.ok()) return ErrorOfState("from_state", from.status());
    taken.from = *from;
    absl::StatusOr<GenerateInput> input = Complete(
        std::move(taken), context, format_->Names(i, request_.prompts.size()));
    if (!input.ok()) return ErrorOf(input.status());
    std::optional<ChoicePiece::Echo> echo;
    if (request_.echo) {
      echo = {PromptText(prompt, input->command.append),
              input->command.append[0]};
      prompt.prompt = {};
    }
    for (int sample = 0; sample < samples; ++sample) {
      Choice& choice = *choices_[i * samples + sample];
      choice.with_logprobs_ = prompt.options.sampling.num_logprobs >= 0;
      choice.piece_.echo = echo;
      inputs_.push_back(SampleOf(*input, sample));
      // Its prompt counts once.
      choice.is_sample_ = sample > 0;
      if (!choice.is_sample_) {
        choice.prompt_tokens_ =
            static_cast<int64_t>(input->command.append.size()) +
            (input->from == nullptr ? 0 : input->from->num_tokens());
      }
      if (samples > 1) {
        choice.piece_.seed = inputs_.back().options.sampling.seed;
      }
    }
  }
  return std::nullopt;
}

std::string CompletionCall::PromptText(const RequestInput& prompt,
                                       absl::Span<const int32_t> ids) const {
  if (const auto* const text = std::get_if<std::string>(&prompt.prompt)) {
    return *text;
  }
  const Tokenizer* const tokenizer = environment_.context.tokenizer;
  if (tokenizer == nullptr) return "";
  StreamDecoder decoder(
      tokenizer,
      StreamDecoder::Options({}, /*includes_stop=*/false,
                             !prompt.options.stopping.skip_special_tokens));
  std::string text;
  for (const int32_t id : ids) {
    if (id >= tokenizer->vocab_size()) break;  // the engine refuses it
    text += decoder.Append(id);
  }
  return text + decoder.Flush();
}

void CompletionCall::AddPrompt(int index,
                               std::vector<StepEvent::PromptLogprob> tokens) {
  if (tokens.empty()) return;
  // Those of its samples begin later, and show the same.
  const int end = index + request_.samples - index % request_.samples;
  for (int i = index; i < end; ++i) {
    auto& prompt = choices_[static_cast<size_t>(i)]->piece_.prompt;
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  }
}

std::optional<ApiError> CompletionCall::SubmitInputs() {
  std::vector<GenerateInput> inputs = std::exchange(inputs_, {});
  const size_t count = inputs.size();
  std::vector<Engine::Submission> submissions;
  if (request_.keep_state) {
    // The engine does not know that no other command follows.
    for (size_t i = 0; i < count; ++i) {
      const absl::Status status = ValidateMinTokens(
          inputs[i].options, inputs[i].command.generate,
          format_->Names(i / request_.samples, request_.prompts.size()));
      if (!status.ok()) return ErrorOf(status);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    submissions.push_back(MakeSubmission(
        std::move(inputs[i]),
        format_->Names(i / request_.samples, request_.prompts.size()),
        std::shared_ptr<EventSink>(shared_from_this(), choices_[i].get()),
        deadline_));
    submissions.back().close_when_done = !request_.keep_state;
  }
  const absl::StatusOr<std::vector<uint64_t>> accepted = Submit(
      std::move(submissions), [this](absl::Span<const Engine::Submission> all) {
        RECURVE_RETURN_IF_ERROR(CheckWholeSize(all));
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i].from == nullptr) {
            choices_[i]->writer_->SetPrompt(all[i].command.append);
            continue;
          }
          std::vector<int32_t> before = all[i].from->tokens;
          before.insert(before.end(), all[i].command.append.begin(),
                        all[i].command.append.end());
          choices_[i]->writer_->SetPrompt(before);
        }
        return absl::OkStatus();
      });
  if (!accepted.ok()) return ErrorOf(accepted.status());
  std::vector<std::string> ids;
  ids.reserve(count);
  for (const uint64_t id : *accepted) ids.push_back(FormatRequestId(id));
  if (request_id_.empty()) {
    id_ = absl::StrCat(format_->id_prefix(), ids[0]);
    headers_.emplace_back(kRequestIdHeader, id_);
  } else {
    id_ = absl::StrCat(format_->id_prefix(), request_id_[0]);
  }
  headers_.emplace_back("recurve-request-id", absl::StrJoin(ids, ","));
  if (request_.keep_state) {
    for (const auto& choice : choices_) KeepState(*choice);
  }
  return std::nullopt;
}

void CompletionCall::OnWritten() {
  {
    MutexLock lock(&mu_);
    write_in_flight_ = false;
  }
  Pump();
}

void CompletionCall::OnProgress() { GiveReaderTime(); }

void CompletionCall::OnDone(const absl::Status& status) {
  Leave(status);
  {
    MutexLock lock(&mu_);
    gone_ = true;
  }
  // No one would learn their names.
  ReleaseUnshown();
}

std::optional<ApiError> CompletionCall::FirstError() {
  for (const Part& part : parts_) {
    if (part.end && !part.end->ok()) return ErrorOf(*part.end);
  }
  return std::nullopt;
}

std::vector<uint64_t> CompletionCall::TakeStalled() {
  std::vector<uint64_t> ids;
  for (Part& part : parts_) {
    if (std::exchange(part.stalled, false)) ids.push_back(*part.id);
  }
  return ids;
}

nlohmann::json CompletionCall::TotalUsage() const {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  bool approximate = false;
  for (const auto& choice : choices_) {
    prompt_tokens += choice->prompt_tokens_;
    completion_tokens += choice->completion_tokens_;
    cached_tokens += choice->cached_tokens_;
    approximate |= choice->approximate_;
  }
  return UsageJson(prompt_tokens, completion_tokens, cached_tokens,
                   approximate);
}

nlohmann::json CompletionCall::AnswerJson(bool event) const {
  return {{"id", id_},
          {"object", std::string(format_->object(event))},
          {"created", created_},
          {"model", model_name_}};
}

std::string CompletionCall::EventsOfAll() {
  std::string events;
  for (const auto& choice : choices_) {
    choice->shown_kept_ |= choice->piece_.kept.has_value();
    for (nlohmann::json& part : choice->writer_->TakeEvents(&choice->piece_)) {
      nlohmann::json json = AnswerJson(/*event=*/true);
      json["choices"] = nlohmann::json::array({std::move(part)});
      if (request_.continuous_usage) {
        json["usage"] = TotalUsage();
      } else if (request_.include_usage) {
        json["usage"] = nullptr;
      }
      events += Event(json);
    }
  }
  return events;
}

std::string CompletionCall::LastEvents() {
  std::string events;
  if (request_.include_usage) {
    nlohmann::json json = AnswerJson(/*event=*/true);
    json["choices"] = nlohmann::json::array();
    json["usage"] = TotalUsage();
    events += Event(json);
  }
  return events + "data: [DONE]\n\n";
}

HttpResponse CompletionCall::WholeAnswer() {
  MutexLock lock(&mu_);
  nlohmann::json json = AnswerJson(/*event=*/false);
  json["choices"] = nlohmann::json::array();
  for (const auto& choice : choices_) {
    choice->shown_kept_ |= choice->piece_.kept.has_value();
    json["choices"].push_back(choice->writer_->Whole(choice->piece_));
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
        // Compressors between here and the client would hold events back.
        response.headers.emplace_back("Cache-Control",
                                      "no-cache, no-transform");
        // Makes nginx forward events without buffering.
        response.headers.emplace_back("X-Accel-Buffering", "no");
        response.ping = kPing;
        response.body = std::exchange(piece, "");
      }
    }
    if (ended) {
      over_ = true;
      CloseTickets();
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
      reply_->SendMade([self = self()] { return self->WholeAnswer(); });
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
