#include "server/services/generate_call.h"

#include <utility>

#include "base/status_macros.h"

namespace recurve {

// The engine's view of one continuation. All members are guarded by the call's
// mu_, but those that are constant.
class GenerateCall::Sample : public EventSink {
 public:
  Sample(GenerateCall* call, uint32_t index, uint64_t seed)
      : call_(call), index_(index), seed_(seed) {}

  void OnAdmitted(double queue_seconds) override {
    {
      MutexLock lock(&call_->mu_);
      admitted_.emplace();
      admitted_->set_prompt_tokens(
          static_cast<uint32_t>(call_->prompt_tokens_));
      admitted_->set_seed(seed_);
      admitted_->set_queue_seconds(queue_seconds);
    }
    call_->Pump();
  }

  bool OnStep(StepEvent event) override {
    bool room;
    {
      MutexLock lock(&call_->mu_);
      const bool with_logprobs = call_->with_logprobs_;
      if (event.has_token) call_->part(index_).ticket.CountToken();
      AddPrompt(event);
      if (event.has_token || !event.text.empty()) {
        AppendStep(
            event, with_logprobs,
            &tokens.Grow(event.has_token, StepBytes(event, with_logprobs)));
      }
      room = call_->HasRoom(index_);
    }
    call_->Pump();
    return room;
  }

  void OnCommandDone(CommandResult result) override {
    {
      MutexLock lock(&call_->mu_);
      if (!result.text.empty()) {
        AppendText(result.completion_tokens, result.text,
                   &tokens.Grow(0, static_cast<int64_t>(result.text.size())));
      }
      finished_.emplace();
      finished_->set_reason(ToProto(result.reason));
      finished_->set_stop_string(result.stop_string);
      *finished_->mutable_usage() = UsageToProto(result);
      v1::Timings& timings = *finished_->mutable_timings();
      timings.set_queue_seconds(result.queue_seconds);
      timings.set_time_to_first_token_seconds(
          result.time_to_first_token_seconds);
      timings.set_total_seconds(result.total_seconds);
    }
    call_->Pump();
  }

  void OnEnd(absl::Status status) override {
    call_->EndOf(index_, std::move(status));
  }

  // Moves its next event into `message`; false if there is none. REQUIRES: the
  // call's mu_ is held.
  bool Take(v1::GenerateEvent* message) {
    message->set_sample(index_);
    if (admitted_) {
      admitted_->set_request_id(FormatRequestId(*call_->part(index_).id));
      *message->mutable_admitted() = *std::exchange(admitted_, std::nullopt);
      return true;
    }
    if (!prompt.empty()) {
      *message->mutable_prompt_logprobs() = prompt.TakeFirst();
      return true;
    }
    if (!tokens.empty()) {
      *message->mutable_tokens() = tokens.TakeFirst();
      return true;
    }
    if (finished_) {
      *message->mutable_finished() = *std::exchange(finished_, std::nullopt);
      return true;
    }
    return false;
  }

  OutputParts<v1::PromptLogprobs> prompt;
  OutputParts<v1::Tokens> tokens;

 private:
  // In messages of bounded length, whatever a step has.
  void AddPrompt(StepEvent& event) {
    for (StepEvent::PromptLogprob& token :
         std::exchange(event.prompt_logprobs, {})) {
      StepEvent one;
      one.prompt_logprobs.push_back(std::move(token));
      AppendPrompt(one, &prompt.Grow(0, PromptBytes(one)));
    }
  }

  GenerateCall* const call_;
  const uint32_t index_;
  const uint64_t seed_;
  std::optional<v1::Admitted> admitted_;
  std::optional<v1::Finished> finished_;
};

GenerateCall::GenerateCall(const CallEnvironment& environment,
                           const RpcHead& head,
                           std::shared_ptr<RpcStream> stream)
    : StreamCall(environment, head, std::move(stream)) {}

GenerateCall::~GenerateCall() = default;

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
  const uint32_t count = request.has_n() ? request.n() : 1;
  if (count < 1 || count > kMaxSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", count, "; expected 1 to ", kMaxSamples));
  }
  RECURVE_ASSIGN_OR_RETURN(RequestInput read,
                           FromProto(request, environment_.context));
  RECURVE_ASSIGN_OR_RETURN(read.from, FindState(read.from_state, &read.seed));
  RECURVE_ASSIGN_OR_RETURN(GenerateInput input,
                           Complete(std::move(read), environment_.context, {}));
  with_logprobs_ = input.options.sampling.num_logprobs >= 0;
  prompt_tokens_ = static_cast<int64_t>(input.command.append.size());
  if (input.from != nullptr) prompt_tokens_ += input.from->num_tokens();
  if (count > 1) RECURVE_RETURN_IF_ERROR(Widen(count));
  std::vector<GenerateInput> inputs;
  std::vector<EventSink*> sinks;
  for (uint32_t i = 0; i < count; ++i) {
    inputs.push_back(SampleOf(input, static_cast<int>(i)));
    samples_.push_back(
        std::make_unique<Sample>(this, i, inputs.back().options.sampling.seed));
    sinks.push_back(samples_.back().get());
  }
  return Start(std::move(inputs), sinks, {}, /*close_when_done=*/true);
}

StreamCall<v1::GenerateEvent>::Buffered GenerateCall::buffered(
    size_t index) const {
  const Sample& sample = *samples_[index];
  return {sample.tokens.tokens(),
          sample.tokens.bytes() + sample.prompt.bytes()};
}

bool GenerateCall::TakeOutput(v1::GenerateEvent* message, bool*) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    Sample& sample = *samples_[next_];
    next_ = (next_ + 1) % samples_.size();
    if (sample.Take(message)) return true;
  }
  return false;
}

}  // namespace recurve
