#include "server/services/generate_call.h"

#include <utility>

#include "base/status_macros.h"

namespace recurve {

void GenerateCall::Begin() {
  if (!Enter()) return;
  // First, so that a refusal under overload costs as little as possible: the
  // prompt is not even received.
  if (absl::Status status = CheckAccepts(); !status.ok()) {
    return Refuse(status);
  }
  stream_->Read(kRequestTimeout);
}

void GenerateCall::OnHalfClose() {
  Refuse(absl::InvalidArgumentError("the request is missing"));
}

void GenerateCall::OnMessage(std::string message) {
  const auto request = std::make_shared<v1::GenerateRequest>();
  if (!ParseMessage(message, request.get())) {
    return Refuse(absl::InvalidArgumentError(kMalformedMessage));
  }
  RunEncoding(static_cast<int64_t>(request->prompt_text().size()),
              [this, request] { return Open(*request); });
}

absl::Status GenerateCall::Open(const v1::GenerateRequest& request) {
  RECURVE_ASSIGN_OR_RETURN(RequestInput read,
                           FromProto(request, environment_.context));
  RECURVE_ASSIGN_OR_RETURN(read.from, FindState(read.from_state, &read.seed));
  RECURVE_ASSIGN_OR_RETURN(GenerateInput input,
                           Complete(std::move(read), environment_.context, {}));
  with_logprobs_ = input.options.sampling.num_logprobs >= 0;
  seed_ = input.options.sampling.seed;
  prompt_tokens_ = static_cast<int64_t>(input.command.append.size());
  if (input.from != nullptr) prompt_tokens_ += input.from->num_tokens();
  return Start(std::move(input), {}, /*close_when_done=*/true);
}

void GenerateCall::OnAdmitted(double queue_seconds) {
  {
    MutexLock lock(&mu_);
    admitted_.emplace();
    admitted_->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
    admitted_->set_seed(seed_);
    admitted_->set_queue_seconds(queue_seconds);
  }
  Pump();
}

bool GenerateCall::OnStep(StepEvent event) {
  bool room;
  {
    MutexLock lock(&mu_);
    if (event.has_token) part().ticket.CountToken();
    AppendStep(
        event, with_logprobs_,
        &tokens_.Grow(event.has_token, StepBytes(event, with_logprobs_)));
    room = HasRoom();
  }
  Pump();
  return room;
}

void GenerateCall::OnCommandDone(CommandResult result) {
  {
    MutexLock lock(&mu_);
    if (!result.text.empty()) {
      AppendText(result.completion_tokens, result.text,
                 &tokens_.Grow(0, static_cast<int64_t>(result.text.size())));
    }
    finished_.emplace();
    finished_->set_reason(ToProto(result.reason));
    finished_->set_stop_string(result.stop_string);
    *finished_->mutable_usage() = UsageToProto(result);
    v1::Timings& timings = *finished_->mutable_timings();
    timings.set_queue_seconds(result.queue_seconds);
    timings.set_time_to_first_token_seconds(result.time_to_first_token_seconds);
    timings.set_total_seconds(result.total_seconds);
  }
  Pump();
}

bool GenerateCall::TakeOutput(v1::GenerateEvent* message, bool*) {
  if (admitted_) {
    admitted_->set_request_id(FormatRequestId(*part().id));
    *message->mutable_admitted() = *std::exchange(admitted_, std::nullopt);
    return true;
  }
  if (!tokens_.empty()) {
    *message->mutable_tokens() = tokens_.TakeFirst();
    return true;
  }
  if (finished_) {
    *message->mutable_finished() = *std::exchange(finished_, std::nullopt);
    return true;
  }
  return false;
}

}  // namespace recurve
