#ifndef RECURVE_SERVER_OPENAI_COMPLETION_CHOICE_H_
#define RECURVE_SERVER_OPENAI_COMPLETION_CHOICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/serving/event_sink.h"
#include "engine/serving/state_store.h"
#include "server/openai/api_format.h"
#include "server/openai/completion_call.h"
#include "server/openai/openai.h"
#include "server/requests/convert.h"

namespace recurve {

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
        part().ticket.CountToken();
        ++completion_tokens_;
        piece_.last_token = event.token;
      }
      if (piece_.tokens.ids_size() == 0 && piece_.tokens.text().empty() &&
          piece_.prompt.empty()) {
        piece_bytes_ = 0;  // the previous piece is sent
      }
      piece_bytes_ += StepBytes(event, with_logprobs_) + PromptBytes(event);
      call_->AddPrompt(piece_.index, std::move(event.prompt_logprobs));
      if (event.has_token || !event.text.empty()) {
        AppendStep(event, with_logprobs_, &piece_.tokens);
      }
      // A single answer at the end does not wait for a reader; CheckWholeSize
      // limits its size.
      room = !call_->request_.stream ||
             call_->HasRoom(part(), piece_.tokens.ids_size(), piece_bytes_);
    }
    call_->Pump();
    return room;
  }

  void OnCommandDone(CommandResult result) override {
    bool keeps_state = false;
    {
      MutexLock lock(&call_->mu_);
      AppendText(result.completion_tokens, result.text, &piece_.tokens);
      v1::Finished finished;
      finished.set_reason(ToProto(result.reason));
      finished.set_stop_string(result.stop_string);
      *finished.mutable_usage() = UsageToProto(result);
      keeps_state = call_->request_.keep_state;
      (keeps_state ? unkept_ : piece_.finished) = std::move(finished);
      completion_tokens_ = result.completion_tokens;
      cached_tokens_ = is_sample_ ? 0 : result.cache.cached_tokens;
      approximate_ = result.cache.approximate;
    }
    if (keeps_state) call_->KeepState(*this);
    call_->Pump();
  }

  void OnEnd(absl::Status status) override {
    {
      // What was to be generated is: the sequence only waited for its state.
      MutexLock lock(&call_->mu_);
      if (unkept_) {
        if (!kept_) {
          kept_ = status.ok() ? absl::CancelledError("the request has ended")
                              : status;
        }
        status = absl::OkStatus();
        // Only now: the engine has let go of text that it held back.
        piece_.kept = *kept_;
        piece_.finished = std::exchange(unkept_, std::nullopt);
      }
    }
    if (call_->EndPart(part(), std::move(status))) call_->reply_->Drop();
    call_->Pump();
  }

 private:
  friend class CompletionCall;

  Part& part() { return call_->parts_[static_cast<size_t>(piece_.index)]; }

  CompletionCall* const call_;
  // Set before the engine knows of the choice, then constant.
  bool with_logprobs_ = false;
  int64_t prompt_tokens_ = 0;
  bool is_sample_ = false;  // of a prompt that another choice counts

  ChoicePiece piece_;  // output not sent yet
  // How it finished, while its sequence waits for its state to be taken; and
  // that state, or why there is none.
  std::optional<v1::Finished> unkept_;
  std::optional<absl::StatusOr<StateInfo>> kept_;
  bool shown_kept_ = false;   // its name is on the way to the client
  bool takes_state_ = false;  // the engine was asked for it
  int64_t piece_bytes_ = 0;   // size of its tokens
  std::unique_ptr<ChoiceWriter> writer_;
  int64_t completion_tokens_ = 0;
  int64_t cached_tokens_ = 0;  // known when it is done
  bool approximate_ = false;   // CacheUse::approximate, likewise
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_COMPLETION_CHOICE_H_
