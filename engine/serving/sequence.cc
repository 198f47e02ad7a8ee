#include "engine/serving/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace recurve {
namespace {

bool Contains(absl::Span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

SequenceOptions WithMask(SequenceOptions options,
                         absl::Span<const int32_t> eos_token_ids) {
  options.sampling.min_tokens = options.stopping.min_tokens;
  options.sampling.masked = MaskedTokens(options.stopping, eos_token_ids);
  return options;
}

}  // namespace

Sequence::Sequence(uint64_t id, uint64_t arrival, SequenceOptions options,
                   bool close_when_done, const Tokenizer* tokenizer,
                   absl::Span<const int32_t> eos_token_ids,
                   std::shared_ptr<EventSink> sink, Clock::time_point submitted)
    : submitted(submitted),
      id_(id),
      arrival_(arrival),
      options_(WithMask(std::move(options), eos_token_ids)),
      eos_token_ids_(eos_token_ids.begin(), eos_token_ids.end()),
      tokenizer_(tokenizer),
      close_when_done_(close_when_done),
      sink_(std::move(sink)) {
  if (tokenizer != nullptr) decoder_ = NewDecoder();
}

StreamDecoder Sequence::NewDecoder() const {
  const StoppingParams& stopping = options_.stopping;
  return {tokenizer_,
          {stopping.stop_strings, stopping.include_stop_str_in_output,
           /*special_tokens=*/!stopping.skip_special_tokens}};
}

bool Sequence::StartNextCommand() {
  if (active_) return true;
  if (commands_.empty()) return false;
  Command command = std::move(commands_.front());
  commands_.pop_front();
  if (from_ != nullptr) Continue(command);
  if (command.rollback_to) RollBack(*command.rollback_to);
  if (!command.append.empty()) last_row = nullptr;
  keep_ = command.keep;
  command_appended_ = static_cast<int64_t>(command.append.size());
  // The first row this command reports. The last sampled token is still to be
  // computed; and a command that appends nothing draws from the last row.
  next_logits_ =
      num_tokens() - (output_pending_ || command.append.empty() ? 1 : 0);
  const bool new_text =
      decoder_ && (decoder_->stopped() || !command.append.empty());
  if (new_text) {
    // The next generated text does not continue the text generated so far.
    carried_text_ += decoder_->Flush();
    decoder_ = NewDecoder();
  }
  const bool whole = whole_prompt_ && tokens_.empty();
  if (whole) whole_tokens_ = static_cast<int64_t>(command.append.size());
  tokens_.insert(tokens_.end(), command.append.begin(), command.append.end());
  const auto first_new = static_cast<int64_t>(kinds_.size());
  const bool few = command.append.size() < kMinPromptTokens && !whole;
  const size_t count = command.append.size();
  kinds_.resize(tokens_.size(), few ? TokenKind::kStep : PromptOf(count));
  if (!few) {
    kinds_[first_new] = PromptStartOf(count);
    prompts_.push_back({first_new, num_tokens()});
  }
  prompt_.insert(prompt_.end(), command.append.begin(), command.append.end());
  if (new_text) decoder_->SkipBefore(tokens_);
  generate_left_ = command.generate;
  if (!command.append.empty() || command.generate > 0) output_pending_ = false;
  const bool at_end = num_computed_ == num_tokens();
  // Without the state it will be drawn again, with the same result.
  if (!at_end || command.logits != LogitsMode::kNone) {
    drawn.reset();
  } else if (generate_left_ > 0 && !drawn && last_row != nullptr) {
    DrawFrom(last_row);
  }
  if (generate_left_ > 0 && at_end && !drawn) {
    // The row to draw the next token from is gone, or wanted again. A state
    // cannot absorb its last token again, so all are recomputed.
    lease.reset();
    saved = {};
    num_computed_ = 0;
    looked_up = 0;
  }
  prompt_work_ = num_tokens() - num_computed_;
  logits_mode_ = command.logits;
  prompt_logprobs_ = command.prompt_logprobs;
  next_score_ = 0;
  score_end_ = prompt_logprobs_ >= 0 ? num_tokens() - 1 : 0;
  stop_reason_.reset();
  active_ = true;
  command_work_ = work_left();
  generated_before_ = generated();
  return true;
}

void Sequence::FindPrompts() {
  prompts_.clear();
  for (int64_t i = 0; i < num_tokens(); ++i) {
    if (kinds_[i] == TokenKind::kStep) continue;
    if (StartsPrompt(kinds_[i])) prompts_.push_back({i, i});
    prompts_.back().end = i + 1;
  }
}

void Sequence::AdoptKinds(absl::Span<const TokenKind> kinds) {
  RECURVE_CHECK(generated() == 0 && kinds.size() < kinds_.size());
  std::copy(kinds.begin(), kinds.end(), kinds_.begin());
  const auto rest = kinds_.begin() + static_cast<int64_t>(kinds.size());
  const auto count = static_cast<size_t>(kinds_.end() - rest);
  std::fill(rest, kinds_.end(), PromptOf(count));
  *rest = PromptStartOf(count);
  FindPrompts();
}

void Sequence::DrawFrom(const LogitsRow& row) {
  thread_local SamplingScratch scratch;  // sized to the vocabulary
  absl::StatusOr<SampleResult> sample = SampleRow(
      {*row, prompt_, output_, output_.size(), &options_.sampling}, &scratch);
  if (sample.ok()) drawn = *std::move(sample);
}

void Sequence::Continue(const Command& command) {
  const SequenceStatePtr from = std::exchange(from_, nullptr);
  started_from_state_ = true;
  imported_ = from->imported;
  tokens_ = from->tokens;
  kinds_ = from->kinds;
  prompt_ = from->tokens;
  FindPrompts();
  if (whole_prompt_ && !prompts_.empty() && prompts_[0].begin == 0) {
    whole_tokens_ = prompts_[0].end;
  }
  if (decoder_) decoder_->SkipBefore(tokens_);
  const SnapshotPrefix& computed = from->start(command);
  if (from->draws_from_row(command)) last_row = from->last_row;
  cache_use.cached_tokens = computed.tokens;
  cache_use.miss = CacheMiss::kNone;
  if (!computed.empty()) ContinueFrom(computed);
}

std::vector<int64_t> Sequence::KeptTokens() const {
  std::vector<int64_t> tokens;
  for (const KeptPoint& point : kept_) tokens.push_back(point.tokens);
  return tokens;
}

std::optional<std::pair<SequenceState, SnapshotPrefix>> Sequence::StateAt(
    int64_t tokens) const {
  for (const KeptPoint& point : kept_) {
    if (point.tokens != tokens) continue;
    SequenceState state;
    state.imported = imported_;
    if (point.state.tokens == tokens) state.last_row = point.last_row.lock();
    state.tokens.assign(tokens_.begin(), tokens_.begin() + tokens);
    state.kinds.assign(kinds_.begin(), kinds_.begin() + tokens);
    return std::make_pair(std::move(state), point.state);
  }
  return std::nullopt;
}

void Sequence::Keep(SnapshotPrefix state) {
  RECURVE_CHECK(!active_ && !in_flight());
  kept_.push_back({num_tokens(), std::move(state), prompt_.size(),
                   output_.size(), output_pending_, decoder_, carried_text_,
                   drawn, last_row});
}

void Sequence::RollBack(int64_t tokens) {
  while (!kept_.empty() && kept_.back().tokens > tokens) kept_.pop_back();
  RECURVE_CHECK(!active_ && !in_flight() && !kept_.empty() &&
                kept_.back().tokens == tokens);
  if (tokens == num_tokens()) return;  // every command adds a token
  ++rollbacks_;
  places.erase(std::upper_bound(places.begin(), places.end(), tokens),
               places.end());
  const KeptPoint& point = kept_.back();
  tokens_.resize(tokens);
  kinds_.resize(tokens);
  while (!prompts_.empty() && prompts_.back().begin >= tokens) {
    prompts_.pop_back();
  }
  prompt_.resize(point.appended);
  output_.resize(point.generated);
  output_pending_ = point.output_pending;
  decoder_ = point.decoder;
  carried_text_ = point.carried_text;
  drawn = point.drawn;
  last_row = point.last_row.lock();
  lease.reset();
  saved = point.state;
  rolled_back = !saved.empty();
  num_computed_ = saved.tokens;
  if (!saved.empty()) {
    base = saved;
  } else {
    looked_up = 0;
    if (base.tokens > tokens) base = {};
  }
  if (before.tokens > tokens) before = {};
}

int64_t Sequence::prompt_end(int64_t position) const {
  for (size_t i = prompts_.size(); i > 0; --i) {
    if (prompts_[i - 1].begin < position) {
      return std::min(prompts_[i - 1].end, position);
    }
  }
  return 0;
}

bool Sequence::WillDraw(int64_t end) const {
  if (!active_ || generate_left_ > 0 || end != num_tokens()) return false;
  return commands_.empty() ? !close_when_done_
                           : commands_.front().append.empty();
}

bool Sequence::WantsLogits(int64_t position) const {
  if (!active_ || position < next_logits_) return false;
  switch (logits_mode_) {
    case LogitsMode::kNone:
      return false;
    case LogitsMode::kNext:
      return position == num_tokens() - 1;
    case LogitsMode::kAll:
      return true;
  }
  return false;
}

bool Sequence::HasWork() const {
  if (!active_) return false;
  if (samples_in_flight_ > 0) return generate_left_ > samples_in_flight_;
  return !in_flight() || launched_computed() < num_tokens();
}

bool Sequence::MayStop(const StoppingParams& stopping,
                       absl::Span<const int32_t> eos_token_ids) {
  return (!stopping.ignore_eos && !eos_token_ids.empty()) ||
         !stopping.stop_token_ids.empty() || !stopping.stop_strings.empty();
}

Admission::Work Sequence::work_left() const {
  Admission::Work work = {num_tokens() - num_computed_, generate_left_,
                          MayStop()};
  if (!active_ && !commands_.empty()) {
    const Command& next = commands_.front();
    work.prompt_tokens += static_cast<int64_t>(next.append.size());
    work.generate = next.generate;
  }
  return work;
}

bool Sequence::MustWait() const {
  return samples_in_flight_ > 0 && generate_left_ > samples_in_flight_ &&
         MayStop() && !(close_when_done_ && commands_.empty());
}

void Sequence::Launched(int64_t count, int32_t sample) {
  tokens_in_flight_ += count;
  if (sample < 0) return;
  ++samples_in_flight_;
  sample_in_flight_ = sample;
}

void Sequence::Advance(int64_t count, bool sampled) {
  num_computed_ += count;
  tokens_in_flight_ -= count;
  if (sampled) --samples_in_flight_;
}

SampleRequest Sequence::MakeSampleRequest(int32_t logit_index) const {
  return {logit_index, &options_.sampling, prompt_, output_,
          output_.size() + samples_in_flight_,
          // Under a number the tokens only grow.
          id_ + rollbacks_};
}

std::optional<FinishReason> Sequence::StopsAt(int32_t token) const {
  if (!options_.stopping.ignore_eos && Contains(eos_token_ids_, token))
    return FinishReason::kEos;
  if (Contains(options_.stopping.stop_token_ids, token))
    return FinishReason::kStopToken;
  return std::nullopt;
}

void Sequence::AcceptToken(const SampleResult& sample, StepEvent* event) {
  RECURVE_CHECK(active_ && generate_left_ > 0 && num_computed_ == num_tokens());
  event->has_token = true;
  event->index = generated();
  event->token = sample.token;
  event->logprob = sample.logprob;
  event->top_logprobs = sample.top;
  last_row = nullptr;
  tokens_.push_back(sample.token);
  kinds_.push_back(TokenKind::kStep);
  output_.push_back(sample.token);
  output_pending_ = true;
  --generate_left_;
  const bool may_stop = event->index >= options_.stopping.min_tokens;
  stop_reason_ = may_stop ? StopsAt(sample.token) : std::nullopt;
  if (decoder_) {
    event->text = std::exchange(carried_text_, "");
    if (!stop_reason_ || options_.stopping.include_stop_str_in_output) {
      event->text += decoder_->Append(sample.token, may_stop);
    }
    if (!stop_reason_ && decoder_->stopped()) {
      stop_reason_ = FinishReason::kStopString;
    }
  }
  if (!stop_reason_ && generate_left_ == 0) {
    stop_reason_ = FinishReason::kLength;
  }
  if (stop_reason_) generate_left_ = 0;
}

bool Sequence::CommandComplete() const {
  if (!active_ || generate_left_ > 0) return false;
  return num_computed_ >= num_tokens() - (output_pending_ ? 1 : 0);
}

CommandResult Sequence::FinishCommand(Clock::time_point now) {
  RECURVE_CHECK(CommandComplete());
  active_ = false;
  CommandResult result;
  result.reason = stop_reason_.value_or(FinishReason::kLength);
  if (decoder_) {
    // A sequence that continues keeps an incomplete character for its next
    // command.
    if (close_when_done_ && commands_.empty()) result.text = FlushText();
    // An incomplete character, now U+FFFD, may have completed a stop string.
    if (decoder_->stopped() && result.reason == FinishReason::kLength) {
      result.reason = FinishReason::kStopString;
    }
    if (result.reason == FinishReason::kStopString) {
      result.stop_string = decoder_->matched_stop_string();
    }
  }
  result.sequence_tokens = num_tokens();
  result.prompt_tokens = static_cast<int64_t>(prompt_.size());
  result.completion_tokens = generated();
  result.preemptions = preemptions_;
  result.cache = cache_use;
  result.queue_seconds = queue_seconds;
  result.time_to_first_token_seconds = time_to_first_token_seconds;
  result.total_seconds = std::chrono::duration<double>(now - submitted).count();
  return result;
}

std::string Sequence::FlushText() {
  if (!decoder_) return "";
  return std::exchange(carried_text_, "") + decoder_->Flush();
}

void Sequence::Preempt(SnapshotPrefix copy) {
  RECURVE_CHECK(!in_flight() && (copy.empty() || copy.tokens == num_computed_));
  lease.reset();
  saved = std::move(copy);
  if (saved.empty()) {
    num_computed_ = 0;
    looked_up = 0;
    prompt_work_ = num_tokens();
    held.reset();  // it will be drawn again, with the same result
  }
  ++preemptions_;
}

void Sequence::ContinueFrom(SnapshotPrefix prefix) {
  RECURVE_CHECK(!lease && saved.empty() && num_computed_ == 0 && !in_flight());
  num_computed_ = prefix.tokens;
  prompt_work_ = num_tokens() - num_computed_;
  base = prefix;
  saved = std::move(prefix);
}

std::vector<PrefixToken> Sequence::PrefixTokens(int64_t count) const {
  std::vector<PrefixToken> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = {tokens_[i], kinds_[i]};
  return tokens;
}

int64_t Sequence::NextPlace(int64_t position) const {
  const int64_t after = std::max(position, cache_use.written_tokens);
  const auto next = std::upper_bound(places.begin(), places.end(), after);
  return next == places.end() ? 0 : *next;
}

}  // namespace recurve
