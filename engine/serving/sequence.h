#ifndef RECURVE_ENGINE_SERVING_SEQUENCE_H_
#define RECURVE_ENGINE_SERVING_SEQUENCE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/program/step.h"
#include "engine/serving/admission.h"
#include "engine/serving/cache_use.h"
#include "engine/serving/event_sink.h"
#include "engine/serving/prefix_index.h"
#include "engine/serving/request.h"
#include "engine/serving/sequence_state.h"
#include "engine/tokenizer/stream_decoder.h"
#include "kernels/sampling/sampling.h"
#include "kv_cache/sequence_lease.h"
#include "kv_cache/snapshot.h"

namespace recurve {

using Clock = std::chrono::steady_clock;

// One sequence: its tokens, how many of them are in the cache, its active
// command and its event sink.
//
// A step is launched, and later its results are committed; until then its
// tokens and samples are "in flight". A second step may be launched before the
// first is committed, based on the counts that the first will leave behind.
//
// Invariants:
//  - num_computed <= tokens().size(). A sampled token is known before it is
//    computed, so an idle sequence may be one token behind.
//  - Memory is held exactly while `lease` has a value. Giving it up
//    (preemption) is invisible to clients: it sets num_computed to 0, unless
//    `saved` holds the computed state. Never do both have a value.
//
// Owned by the engine's step thread; not thread-safe.
class Sequence {
 public:
  Sequence(uint64_t id, uint64_t arrival, SequenceOptions options,
           bool close_when_done, const Tokenizer* tokenizer,
           absl::Span<const int32_t> eos_token_ids,
           std::shared_ptr<EventSink> sink, Clock::time_point submitted);

  uint64_t id() const { return id_; }
  uint64_t arrival() const { return arrival_; }
  const SequenceOptions& options() const { return options_; }
  EventSink& sink() { return *sink_; }
  // For the sequence's end: a step in flight may hold the sequence longer.
  std::shared_ptr<EventSink> ReleaseSink() { return std::move(sink_); }

  // Computes the tokens that the first command appends in one step, as a
  // prompt. To be called before that command starts.
  void ComputePromptWhole() { whole_prompt_ = true; }

  // The sequence goes on from this state, whose tokens count as the first of
  // its prompt. To be called before its first command starts.
  void StartFrom(SequenceStatePtr state) { from_ = std::move(state); }
  bool from_state() const { return started_from_state_; }
  // SequenceState::imported.
  bool imported() const { return imported_; }
  // Its value. REQUIRES: no command is active, and it has tokens.
  SequenceState State() const {
    return {tokens_, kinds_, {}, nullptr, {}, imported_};
  }

  // --- Commands ---

  void Enqueue(Command command) { commands_.push_back(std::move(command)); }
  // The client will send no more commands.
  void CloseAfterLastCommand() { close_when_done_ = true; }
  // Starts the next command if none is active. Returns false if there is none.
  bool StartNextCommand();
  // Whether the active command keeps the point that it reaches, and a command
  // may follow.
  bool command_keeps() const {
    return active_ && keep_ && !ends_with_command();
  }
  // Nothing follows the active command.
  bool ends_with_command() const {
    return close_when_done_ && commands_.empty();
  }
  // Keeps the present point for a later Command::rollback_to. `state`: what is
  // computed of it; if it is empty, that is computed again after a rollback.
  // REQUIRES: no command is active.
  void Keep(SnapshotPrefix state);
  std::vector<int64_t> KeptTokens() const;
  void ForgetKept() { kept_.clear(); }
  // The value at a kept point, without what is computed of it, which comes
  // second; nullopt if there is no such point.
  std::optional<std::pair<SequenceState, SnapshotPrefix>> StateAt(
      int64_t tokens) const;
  bool command_active() const { return active_; }
  // No command is active or queued, and none will come.
  bool finished() const {
    return close_when_done_ && !active_ && commands_.empty();
  }

  // --- Progress ---

  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  TokenKind kind(int64_t position) const { return kinds_[position]; }
  // Number of the first `position` tokens up to the last one that is part of a
  // prompt.
  int64_t prompt_end(int64_t position) const;
  int64_t num_computed() const { return num_computed_; }
  // Whether a token may end a command before its maximum length.
  static bool MayStop(const StoppingParams& stopping,
                      absl::Span<const int32_t> eos_token_ids);
  // The number of first tokens that are computed in one step.
  int64_t whole_tokens() const { return whole_tokens_; }
  int64_t appended() const { return static_cast<int64_t>(prompt_.size()); }
  int64_t generated() const { return static_cast<int64_t>(output_.size()); }

  // Their values after the tokens in flight are committed.
  int64_t launched_tokens() const { return num_tokens() + samples_in_flight_; }
  int64_t launched_computed() const {
    return num_computed_ + tokens_in_flight_;
  }
  bool in_flight() const { return tokens_in_flight_ > 0; }
  // Tokens left to compute when the active command began, or when the computed
  // state was lost.
  int64_t prompt_work() const { return prompt_work_; }
  // The remaining work of the active command, or of the next if none is active;
  // and the total work of the active or last one, and its number of generated
  // tokens.
  Admission::Work work_left() const;
  const Admission::Work& command_work() const { return command_work_; }
  int64_t command_generated() const { return generated() - generated_before_; }
  int64_t command_appended() const { return command_appended_; }
  // Whether the active command will then have anything to compute, assuming
  // that a sample in flight does not end the command.
  bool HasWork() const;
  // Whether a sample in flight may end the active command and the sequence may
  // continue after it: the next step must then wait for it.
  bool MustWait() const;
  // Index of the sample in flight among those of its step. REQUIRES: there is
  // one.
  int32_t sample_in_flight() const { return sample_in_flight_; }

  // Whether the active command wants the log-probability of the token after
  // `position`, which is known.
  bool WantsScore(int64_t position) const {
    return active_ && position >= next_score_ && position < score_end_;
  }
  // Whether it wants any still; its number of likeliest tokens.
  bool wants_scores() const { return active_ && next_score_ < score_end_; }
  int32_t num_top_scores() const { return prompt_logprobs_; }
  void ScoreEmitted(int64_t position) { next_score_ = position + 1; }
  // Whether nothing may be taken from the prefix cache, since all logits are
  // wanted.
  bool wants_scores_of_prompt() const {
    return active_ && prompt_logprobs_ >= 0;
  }
  // Whether the active command wants the logits of `position`.
  bool WantsLogits(int64_t position) const;
  bool wants_logits() const {
    return active_ && logits_mode_ != LogitsMode::kNone;
  }
  bool wants_all_logits() const {
    return active_ && logits_mode_ == LogitsMode::kAll;
  }
  // Whether computing up to `end` tokens yields the row that the next token is
  // drawn from.
  bool WillSample(int64_t end) const {
    return active_ && generate_left_ > samples_in_flight_ &&
           end == launched_tokens();
  }
  // Whether computing up to `end` tokens completes a command that generates
  // nothing: the next token is then drawn as well, because the row it is drawn
  // from is there only now (`drawn`).
  bool WillDraw(int64_t end) const;
  SampleRequest MakeSampleRequest(int32_t logit_index) const;

  // A step with `count` more of its tokens is in flight; `sample` is the index
  // of the sequence's sample in it, or -1. A token that is only drawn is none.
  void Launched(int64_t count, int32_t sample);
  // The step has completed: its `count` tokens are in the cache.
  void Advance(int64_t count, bool sampled);
  // Accepts a sampled token: appends it and fills the event. Ends generation if
  // a stop condition holds.
  void AcceptToken(const SampleResult& sample, StepEvent* event);
  void LogitsEmitted(int64_t position) { next_logits_ = position + 1; }

  // The active command has computed and generated all its tokens.
  bool CommandComplete() const;
  // Ends the active command. REQUIRES: CommandComplete().
  CommandResult FinishCommand(Clock::time_point now);

  // Text held back by completed commands, now that nothing follows.
  std::string FlushText();

  // Gives up all memory. Without a `copy` the tokens will be computed again.
  void Preempt(SnapshotPrefix copy);
  // What the prefix cache has of the tokens: they need not be computed.
  // REQUIRES: no memory is held, and none is computed.
  void ContinueFrom(SnapshotPrefix prefix);

  // The first tokens were computed as these kinds, and the rest is a prompt of
  // its own: that is how all are computed from now on, too. REQUIRES: nothing
  // was generated, and not all are given.
  void AdoptKinds(absl::Span<const TokenKind> kinds);
  // Draws the next token from `row`, into `drawn`. Without effect if nothing
  // can be drawn from it. REQUIRES: no sample is in flight.
  void DrawFrom(const LogitsRow& row);

  // Its known tokens, the first `count`, as the prefix cache compares them.
  std::vector<PrefixToken> PrefixTokens(int64_t count) const;
  // The first of `places` that is after `position` and not taken yet; 0: none.
  int64_t NextPlace(int64_t position) const;

  // --- Memory and waiting, managed by the engine ---

  std::optional<SequenceLease> lease;
  // The computed state, if `lease` has no value and it is in host memory.
  SnapshotPrefix saved;
  // `saved` holds what a preempted sequence had. Blocks of host memory that
  // saving it took.
  bool preempted = false;
  int64_t saved_blocks = 0;
  // `saved` is the state of a kept point.
  bool rolled_back = false;
  // A snapshot of its first tokens, whose pages its own next ones share.
  SnapshotPrefix base;
  // What `base` was before it was of all tokens; may be empty.
  SnapshotPrefix before;
  // Where the prefix cache wants snapshots: ascending. And what it did so far;
  // `looked_up` is its version at the last look, plus 1; `noted`, whether it
  // knows the prompt.
  std::vector<int64_t> places;
  CacheUse cache_use;
  uint64_t looked_up = 0;
  bool noted = false;
  bool cache_use_counted = false;
  // Its cached tokens are counted before it has memory.
  bool cached_counted = false;
  bool admitted = false;
  // SequenceView::passed_over and passes.
  bool passed_over = false;
  int passes = 0;
  // The standing reported to Admission.
  enum class Standing { kIdle, kWaiting, kRunning };
  Standing standing = Standing::kIdle;
  Admission::Work waiting_work;  // valid if kWaiting
  // The sequence that computes the same prompt first; 0: none.
  uint64_t leader = 0;
  // When its call ends; a sequence that would miss it by waiting is ended.
  std::optional<Clock::time_point> deadline;
  // The client is behind; nothing runs until it catches up.
  bool stalled = false;
  Clock::time_point stalled_since;
  // Drawn for a client that has fallen behind.
  std::optional<SampleResult> held;
  // What follows the last token, if a command that generates nothing computed
  // that: for a next one that appends nothing. The draw depends on the tokens
  // and the options alone.
  std::optional<SampleResult> drawn;
  // The logits after the last token, if they were kept.
  LogitsRow last_row;
  Clock::time_point submitted;
  Clock::time_point last_token;
  bool first_token_seen = false;
  double queue_seconds = 0;
  double time_to_first_token_seconds = 0;

 private:
  // Everything that a rollback restores.
  struct KeptPoint {
    int64_t tokens;
    SnapshotPrefix state;
    size_t appended;
    size_t generated;
    bool output_pending;
    std::optional<StreamDecoder> decoder;
    std::string carried_text;
    std::optional<SampleResult> drawn;
    std::weak_ptr<const std::vector<float>> last_row;  // the prefix cache's
  };
  // REQUIRES: a kept point has this number of tokens.
  void RollBack(int64_t tokens);
  // Makes prompts_ agree with kinds_.
  void FindPrompts();
  // Takes over the tokens of `from_`, and what is computed of them. `command`
  // is the first.
  void Continue(const Command& command);

  // A decoder for text that begins here.
  StreamDecoder NewDecoder() const;
  bool MayStop() const { return MayStop(options_.stopping, eos_token_ids_); }
  // The stop condition that `token` meets by itself, if any.
  std::optional<FinishReason> StopsAt(int32_t token) const;

  const uint64_t id_;
  const uint64_t arrival_;
  const SequenceOptions options_;
  const std::vector<int32_t> eos_token_ids_;
  const Tokenizer* const tokenizer_;  // may be null
  bool close_when_done_;
  std::shared_ptr<EventSink> sink_;
  std::optional<StreamDecoder> decoder_;  // absent without a tokenizer
  std::string carried_text_;  // from an earlier command, not emitted yet

  std::vector<int32_t> tokens_;   // all, in order
  std::vector<TokenKind> kinds_;  // kind of each token
  // Where its prompts begin and end, ascending.
  struct PromptRange {
    int64_t begin;
    int64_t end;
  };
  std::vector<PromptRange> prompts_;
  std::vector<int32_t> prompt_;  // appended by the client
  std::vector<int32_t> output_;  // generated
  int64_t num_computed_ = 0;
  int64_t prompt_work_ = 0;
  Admission::Work command_work_;
  int64_t generated_before_ = 0;  // the command
  int64_t command_appended_ = 0;
  int64_t tokens_in_flight_ = 0;
  int64_t samples_in_flight_ = 0;
  int32_t sample_in_flight_ = -1;  // the latest sample
  SequenceStatePtr from_;          // until the first command starts
  bool started_from_state_ = false;
  bool imported_ = false;
  bool whole_prompt_ = false;
  int64_t whole_tokens_ = 0;
  // The last token was sampled and nothing was appended since: it is computed
  // only if something comes after it.
  bool output_pending_ = false;
  int64_t preemptions_ = 0;
  std::vector<KeptPoint> kept_;  // ascending
  uint64_t rollbacks_ = 0;
  bool keep_ = false;  // of the active command

  std::deque<Command> commands_;
  bool active_ = false;
  LogitsMode logits_mode_ = LogitsMode::kNone;
  int64_t generate_left_ = 0;
  int64_t next_logits_ = 0;  // first position whose logits have not been
                             // emitted
  int32_t prompt_logprobs_ = -1;
  // Positions whose logits predict the tokens of the prompt: from the first
  // that was not emitted.
  int64_t next_score_ = 0;
  int64_t score_end_ = 0;
  std::optional<FinishReason> stop_reason_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_SEQUENCE_H_
