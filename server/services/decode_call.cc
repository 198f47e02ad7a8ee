#include "server/services/decode_call.h"

#include <utility>

#include "base/status_macros.h"

namespace recurve {
namespace {

const char* AppendField(const v1::DecodeRequest& request) {
  return request.append_case() == v1::DecodeRequest::kAppendText ? "append_text"
                                                                 : "append_ids";
}

// An upper bound on the bytes that a row adds to a message.
int64_t RowBytes(const StepEvent::LogitsRow& row) {
  constexpr int64_t kFrame = 32;  // tags, lengths and the position
  return kFrame + static_cast<int64_t>(row.values.size() * sizeof(float));
}

}  // namespace

void DecodeCall::Begin() {
  if (Enter()) ReadNext();
}

void DecodeCall::ReadNext() { stream_->Read(environment_.decode_idle_timeout); }

absl::Status DecodeCall::CheckKept(const v1::DecodeRequest& request) {
  MutexLock lock(&mu_);
  return ValidateKept(RollbackOf(request), request.keep(), kept_);
}

absl::Status DecodeCall::Open(const v1::DecodeRequest& request) {
  RECURVE_RETURN_IF_ERROR(CheckAccepts());
  RECURVE_RETURN_IF_ERROR(CheckKept(request));
  GenerateInput input;
  RECURVE_ASSIGN_OR_RETURN(input.options,
                           OptionsFromProto(request, environment_.context));
  std::optional<uint64_t> seed;
  if (request.sampling().has_seed()) seed = request.sampling().seed();
  RECURVE_ASSIGN_OR_RETURN(input.from, FindState(request.from_state(), &seed));
  input.options.sampling.seed = seed ? *seed : RandomSeed();
  const int64_t position = input.from == nullptr ? 0 : input.from->num_tokens();
  RECURVE_ASSIGN_OR_RETURN(
      input.command, CommandFromProto(request, position, environment_.context));
  input.prompt_name = AppendField(request);
  with_logprobs_ = input.options.sampling.num_logprobs >= 0;
  seed_ = input.options.sampling.seed;
  prompt_tokens_ = position + static_cast<int64_t>(input.command.append.size());
  {
    MutexLock lock(&mu_);
    keeps_ = input.command.keep;
  }
  std::vector<GenerateInput> one;
  one.push_back(std::move(input));
  return Start(std::move(one), {this}, DecodeFieldNames(),
               /*close_when_done=*/false);
}

absl::Status DecodeCall::Extend(uint64_t id, const v1::DecodeRequest& request) {
  RECURVE_RETURN_IF_ERROR(CheckNoOptions(request));
  RECURVE_RETURN_IF_ERROR(CheckKept(request));
  int64_t position;
  {
    MutexLock lock(&mu_);
    position = RollbackOf(request).value_or(sequence_tokens_);
  }
  RECURVE_ASSIGN_OR_RETURN(
      Command command,
      CommandFromProto(request, position, environment_.context));
  RECURVE_RETURN_IF_ERROR(
      ValidateCommand(command, position, environment_.engine->limits(),
                      AppendField(request), DecodeFieldNames()));
  if (command.rollback_to) {
    MutexLock lock(&mu_);
    part().ticket.RollBack(*command.rollback_to);
  }
  RECURVE_RETURN_IF_ERROR(Charge(part(), command));
  {
    MutexLock lock(&mu_);
    keeps_ = command.keep;
    while (command.rollback_to && kept_.back() > *command.rollback_to) {
      kept_.pop_back();
    }
  }
  environment_.engine->Extend(id, std::move(command));
  return absl::OkStatus();
}

void DecodeCall::OnHalfClose() {
  std::optional<uint64_t> id;
  {
    MutexLock lock(&mu_);
    if (part().end) return;
    id = part().id;
  }
  if (id) {
    environment_.engine->Close(*id);
  } else {
    Refuse(absl::OkStatus());
  }
}

void DecodeCall::OnMessage(std::string message) {
  std::optional<uint64_t> id;
  {
    MutexLock lock(&mu_);
    if (part().end) return;
    id = part().id;
  }
  const auto request = std::make_shared<v1::DecodeRequest>();
  if (!ParseMessage(message, request.get())) {
    return Fail(absl::InvalidArgumentError(kMalformedMessage));
  }
  RunEncoding(static_cast<int64_t>(request->append_text().size()),
              [this, id, request] {
                return id ? Extend(*id, *request) : Open(*request);
              });
}

void DecodeCall::OnAdmitted(double queue_seconds) {
  {
    MutexLock lock(&mu_);
    v1::Admitted& admitted = *output_.Grow(0, 0).mutable_admitted();
    admitted.set_prompt_tokens(static_cast<uint32_t>(prompt_tokens_));
    admitted.set_seed(seed_);
    admitted.set_queue_seconds(queue_seconds);
  }
  Pump();
}

bool DecodeCall::OnStep(StepEvent event) {
  bool room;
  {
    MutexLock lock(&mu_);
    if (event.has_token) part().ticket.CountToken();
    for (const StepEvent::LogitsRow& row : event.logits) {
      v1::Logits& logits = *output_.Grow(0, RowBytes(row)).add_logits();
      logits.set_position(static_cast<uint64_t>(row.position));
      logits.mutable_values()->Add(row.values.begin(), row.values.end());
    }
    if (event.has_token || !event.text.empty()) {
      v1::DecodeResponse& part =
          output_.Grow(event.has_token, StepBytes(event, with_logprobs_));
      AppendStep(event, with_logprobs_, part.mutable_tokens());
    }
    room = HasRoom();
  }
  Pump();
  return room;
}

void DecodeCall::OnCommandDone(CommandResult result) {
  {
    MutexLock lock(&mu_);
    part().ticket.Settle();
    sequence_tokens_ = result.sequence_tokens;
    if (keeps_) kept_.push_back(sequence_tokens_);
    v1::DecodeResponse& last =
        output_.Grow(0, static_cast<int64_t>(result.text.size()));
    if (!result.text.empty()) {
      AppendText(result.completion_tokens, result.text, last.mutable_tokens());
    }
    last.set_done(true);
    last.set_sequence_tokens(static_cast<uint64_t>(result.sequence_tokens));
    last.set_reason(ToProto(result.reason));
    last.set_stop_string(result.stop_string);
    *last.mutable_usage() = UsageToProto(result);
  }
  Pump();
}

bool DecodeCall::TakeOutput(v1::DecodeResponse* message, bool* read_next) {
  if (output_.empty()) return false;
  *message = output_.TakeFirst();
  *read_next = message->done();
  if (message->has_admitted())
    message->mutable_admitted()->set_request_id(FormatRequestId(*part().id));
  return true;
}

}  // namespace recurve
