#include "server/vllm/vllm_generate_call.h"

#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "server/services/output_parts.h"
#include "server/vllm/vllm_request.h"

namespace recurve {
namespace {

namespace vg = ::vllm::grpc::engine;

// An upper bound on the bytes that a token adds to a message: an id of 5 bytes
// twice, a float, and 9 for each of the most likely.
int64_t TokenBytes(const StepEvent& event, int num_logprobs) {
  if (num_logprobs < 0) return 5;
  return 18 + 9 * static_cast<int64_t>(event.top_logprobs.size());
}

int64_t PromptTokenBytes(const StepEvent::PromptLogprob& token) {
  return 20 + 9 * static_cast<int64_t>(token.top.size());
}

// Where a token is one of the prompt that nothing predicts, `token` is null.
void AppendPrompt(uint32_t id, const StepEvent::PromptLogprob* token,
                  bool with_top, vg::InputLogProbs* out) {
  out->add_token_ids(id);
  vg::InputTokenLogProb* const logprob = out->add_token_logprobs();
  if (token != nullptr) logprob->set_value(token->logprob);
  if (!with_top) return;
  vg::TopLogProbs* const top = out->add_top_logprobs();
  if (token == nullptr) return;
  for (const auto& [other, value] : token->top) {
    top->add_token_ids(static_cast<uint32_t>(other));
    top->add_values(value);
  }
}

void AppendLogprobs(const StepEvent& event, int num_logprobs,
                    vg::OutputLogProbs* out) {
  out->add_token_logprobs(event.logprob);
  out->add_token_ids(static_cast<uint32_t>(event.token));
  if (num_logprobs == 0) return;
  vg::TopLogProbs* const top = out->add_top_logprobs();
  for (const auto& [id, value] : event.top_logprobs) {
    top->add_token_ids(static_cast<uint32_t>(id));
    top->add_values(value);
  }
}

}  // namespace

// The engine's view of one continuation. All members are guarded by the call's
// mu_, but those that are constant.
class VllmGenerateCall::Sample : public EventSink {
 public:
  Sample(VllmGenerateCall* call, uint32_t index) : call_(call), index_(index) {}

  void OnAdmitted(double) override {}

  bool OnStep(StepEvent event) override {
    bool room;
    {
      MutexLock lock(&call_->mu_);
      for (const StepEvent::PromptLogprob& token : event.prompt_logprobs) {
        AppendPromptToken(token);
      }
      // Its text is the caller's to make.
      if (event.has_token) {
        call_->part(index_).ticket.CountToken();
        Append(event);
      }
      room = call_->HasRoom(index_);
    }
    call_->Pump();
    return room;
  }

  void OnCommandDone(CommandResult result) override {
    {
      MutexLock lock(&call_->mu_);
      complete_.set_index(index_);
      complete_.set_finish_reason(
          result.reason == FinishReason::kLength ? "length" : "stop");
      if (result.reason == FinishReason::kStopToken) {
        complete_.set_matched_token_id(last_token_);
      } else if (result.reason == FinishReason::kStopString) {
        complete_.set_matched_stop_str(result.stop_string);
      }
      complete_.set_prompt_tokens(static_cast<uint32_t>(call_->prompt_tokens_));
      complete_.set_completion_tokens(
          static_cast<uint32_t>(result.completion_tokens));
      complete_.set_cached_tokens(
          static_cast<uint32_t>(result.cache.cached_tokens));
      done_ = true;
    }
    call_->Pump();
  }

  void OnEnd(absl::Status status) override {
    call_->EndOf(index_, std::move(status));
  }

  // Moves its next response into `message`; false if there is none. REQUIRES:
  // the call's mu_ is held.
  bool Take(vg::GenerateResponse* message) {
    if (!prompt.empty()) {
      vg::GenerateStreamChunk& chunk = *message->mutable_chunk();
      *chunk.mutable_input_logprobs() = prompt.TakeFirst();
      chunk.set_index(index_);
      chunk.set_prompt_tokens(static_cast<uint32_t>(call_->prompt_tokens_));
      return true;
    }
    if (!chunks.empty()) {
      vg::GenerateStreamChunk& chunk = *message->mutable_chunk();
      chunk = chunks.TakeFirst();
      chunk.set_index(index_);
      chunk.set_prompt_tokens(static_cast<uint32_t>(call_->prompt_tokens_));
      chunk.set_completion_tokens(
          static_cast<uint32_t>(chunk.token_ids_size()));
      return true;
    }
    if (!std::exchange(done_, false)) return false;
    *message->mutable_complete() = std::move(complete_);
    return true;
  }

  OutputParts<vg::InputLogProbs> prompt;
  OutputParts<vg::GenerateStreamChunk> chunks;

 private:
  void AppendPromptToken(const StepEvent::PromptLogprob& token) {
    const bool with_top = call_->num_prompt_logprobs_ > 0;
    const bool first = token.position == 1;
    vg::InputLogProbs* const out =
        call_->stream_output_
            ? &prompt.Grow(0, PromptTokenBytes(token) + (first ? 20 : 0))
            : complete_.mutable_input_logprobs();
    if (first) AppendPrompt(call_->first_prompt_id_, nullptr, with_top, out);
    AppendPrompt(static_cast<uint32_t>(token.token), &token, with_top, out);
  }

  void Append(const StepEvent& event) {
    last_token_ = static_cast<uint32_t>(event.token);
    const int logprobs = call_->num_logprobs_;
    if (call_->stream_output_) {
      vg::GenerateStreamChunk& chunk =
          chunks.Grow(1, TokenBytes(event, logprobs));
      chunk.add_token_ids(last_token_);
      if (logprobs >= 0) {
        AppendLogprobs(event, logprobs, chunk.mutable_output_logprobs());
      }
      return;
    }
    complete_.add_output_ids(last_token_);
    if (logprobs >= 0) {
      AppendLogprobs(event, logprobs, complete_.mutable_output_logprobs());
    }
  }

  VllmGenerateCall* const call_;
  const uint32_t index_;
  uint32_t last_token_ = 0;
  vg::GenerateComplete complete_;
  bool done_ = false;  // complete_ is to be sent
};

VllmGenerateCall::VllmGenerateCall(const CallEnvironment& environment,
                                   OpenRequests* requests, const RpcHead& head,
                                   std::shared_ptr<RpcStream> stream)
    : StreamCall(environment, head, std::move(stream)), requests_(requests) {}

VllmGenerateCall::~VllmGenerateCall() = default;

void VllmGenerateCall::Begin() {
  if (!Enter()) return;
  // First, so that a refusal under overload costs as little as possible.
  if (absl::Status status = CheckAccepts(); !status.ok()) {
    return Refuse(status);
  }
  stream_->Read(kRequestTimeout);
}

void VllmGenerateCall::OnHalfClose() {
  Refuse(absl::InvalidArgumentError("the request is missing"));
}

void VllmGenerateCall::OnMessage(std::string message) {
  const auto request = std::make_shared<vg::GenerateRequest>();
  if (!ParseMessage(message, request.get())) {
    return Refuse(absl::InvalidArgumentError(kMalformedMessage));
  }
  request_id_ = request->request_id();
  requests_->Add(flow().id, request_id_, stream_);
  RunEncoding(static_cast<int64_t>(request->text().size()),
              [this, request] { return Open(*request); });
}

void VllmGenerateCall::OnDone(const absl::Status& status) {
  requests_->Remove(flow().id, request_id_, stream_.get());
  StreamCall::OnDone(status);
}

absl::Status VllmGenerateCall::Open(const vg::GenerateRequest& request) {
  RECURVE_ASSIGN_OR_RETURN(const int count, SamplesOf(request));
  RequestContext context = environment_.context;
  context.default_max_new_tokens = context.max_model_len;
  RECURVE_ASSIGN_OR_RETURN(RequestInput read, FromVllm(request, context));
  if (!request.stream()) {
    RECURVE_RETURN_IF_ERROR(BoundWholeAnswer(read, count, &context));
  }
  const FieldNames names = VllmFieldNames();
  RECURVE_ASSIGN_OR_RETURN(GenerateInput input,
                           Complete(std::move(read), context, names));
  if (!request.stream()) {
    RECURVE_RETURN_IF_ERROR(BoundWholePrompt(input.command, input.prompt_name));
  }
  stream_output_ = request.stream();
  num_logprobs_ = input.options.sampling.num_logprobs;
  num_prompt_logprobs_ = input.command.prompt_logprobs;
  prompt_tokens_ = static_cast<int64_t>(input.command.append.size());
  first_prompt_id_ = static_cast<uint32_t>(input.command.append[0]);
  if (count > 1) RECURVE_RETURN_IF_ERROR(Widen(static_cast<size_t>(count)));
  std::vector<GenerateInput> inputs;
  std::vector<EventSink*> sinks;
  for (int i = 0; i < count; ++i) {
    inputs.push_back(SampleOf(input, i));
    samples_.push_back(
        std::make_unique<Sample>(this, static_cast<uint32_t>(i)));
    sinks.push_back(samples_.back().get());
  }
  return Start(std::move(inputs), sinks, names, /*close_when_done=*/true);
}

StreamCall<vg::GenerateResponse>::Buffered VllmGenerateCall::buffered(
    size_t index) const {
  // What is held of an answer in one piece is bounded (BoundWholeAnswer), and
  // no client waits for a part of it.
  const Sample& sample = *samples_[index];
  return {sample.chunks.tokens(),
          sample.chunks.bytes() + sample.prompt.bytes()};
}

bool VllmGenerateCall::TakeOutput(vg::GenerateResponse* message, bool*) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    Sample& sample = *samples_[next_];
    next_ = (next_ + 1) % samples_.size();
    if (sample.Take(message)) return true;
  }
  return false;
}

}  // namespace recurve
