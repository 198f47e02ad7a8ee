// The step thread of the engine: from the results of a step to the client.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/serving/engine.h"
#include "engine/serving/seconds_between.h"

namespace recurve {
namespace {

// As in SampleRow: -inf only means that a token cannot be drawn.
bool IsBroken(float logit) {
  return std::isnan(logit) || logit == std::numeric_limits<float>::infinity();
}

}  // namespace

void Engine::CommitStep(const PendingStep& step, const StepOutput& output) {
  for (const BatchEntry& entry : step.entries) {
    // If the sequence has ended since, the step's result for it is discarded,
    // and its memory is already free. The next owner's clear is ordered after
    // this step.
    if (entry.sequence->lease) Commit(entry, output);
  }
}

void Engine::Commit(const BatchEntry& entry, const StepOutput& output) {
  Sequence& sequence = *entry.sequence;
  sequence.Advance(entry.num_tokens, entry.sample >= 0 && !entry.draws);
  // No step was launched since.
  if (!runner_->runs_ahead()) {
    absl::Status status = TakeSnapshot(sequence, sequence.num_computed());
    if (status.ok() && entry.kept >= 0) {
      status = TakeEnd(sequence, sequence.num_computed());
    }
    if (!status.ok()) {
      End(sequence.id(), status);
      return;
    }
  }
  if (entry.kept >= 0) KeepRow(sequence, output.kept[entry.kept]);

  if (!(entry.logits.empty() && entry.scores.empty()) &&
      !output.logits_status.ok()) {
    End(sequence.id(), output.logits_status);
    return;
  }
  StepEvent event;
  const int64_t vocab = limits_.vocab_size;
  for (const BatchEntry::WantedLogits& wanted : entry.logits) {
    const auto row = output.logits.subspan(wanted.logit_index * vocab, vocab);
    if (std::any_of(row.begin(), row.end(), IsBroken)) {
      End(sequence.id(),
          absl::InternalError(
              absl::StrCat("non-finite logits at position ", wanted.position)));
      return;
    }
    event.logits.push_back({wanted.position, {row.begin(), row.end()}});
    sequence.LogitsEmitted(wanted.position);
  }
  if (absl::Status status = Score(entry, output, &event); !status.ok()) {
    End(sequence.id(), status);
    return;
  }
  const bool has_rows = !event.logits.empty() || !event.prompt_logprobs.empty();
  if (entry.draws) {
    // A row that nothing can be drawn from is an error of the command that asks
    // for the token, and computes the row again.
    if (output.samples[entry.sample].ok()) {
      sequence.drawn = *output.samples[entry.sample];
    }
    if (has_rows) Emit(sequence, std::move(event));
  } else if (entry.sample >= 0) {
    const absl::StatusOr<SampleResult>& sample = output.samples[entry.sample];
    if (!sample.ok()) {
      End(sequence.id(), sample.status());
      return;
    }
    if (sequence.stalled) {
      // Launched before the client fell behind, so without logits.
      sequence.held = *sample;
      return;
    }
    Deliver(sequence, *sample, std::move(event));
  } else if (has_rows) {
    Emit(sequence, std::move(event));
  }
  FinishCommands(sequence);
}

void Engine::Deliver(Sequence& sequence, const SampleResult& sample,
                     StepEvent event) {
  const auto now = Clock::now();
  sequence.AcceptToken(sample, &event);
  ++counters_.generation_tokens_total;
  if (!std::exchange(sequence.first_token_seen, true)) {
    sequence.time_to_first_token_seconds =
        SecondsBetween(sequence.submitted, now);
    if (observer_ != nullptr)
      observer_->OnFirstToken(sequence.time_to_first_token_seconds);
    StartSamples(sequence.id());
  } else if (observer_ != nullptr) {
    observer_->OnNextToken(SecondsBetween(sequence.last_token, now));
  }
  sequence.last_token = now;
  Emit(sequence, std::move(event));
}

void Engine::Emit(Sequence& sequence, StepEvent event) {
  if (sequence.sink().OnStep(std::move(event))) return;
  sequence.stalled = true;
  sequence.stalled_since = Clock::now();
  Reindex(sequence);
}

void Engine::FinishCommands(Sequence& sequence) {
  if (!sequence.CommandComplete()) return;
  if (absl::Status status = TakeCommandEnd(sequence); !status.ok()) {
    End(sequence.id(), status);
    return;
  }
  const bool keep = sequence.command_keeps();
  const CommandResult result = sequence.FinishCommand(Clock::now());
  if (keep) {
    if (absl::Status status = KeepPoint(sequence); !status.ok()) {
      End(sequence.id(), status);
      return;
    }
  }
  if (!std::exchange(sequence.cache_use_counted, true) &&
      !sequence.from_state()) {
    ++counters_.prompts_by_miss_total[static_cast<int>(result.cache.miss)];
  }
  if (observer_ != nullptr) observer_->OnCommandDone(result);
  {
    // Before the client is told, because it may then give the next command.
    MutexLock lock(&mu_);
    Open& open = open_.at(sequence.id());
    if (--open.commands == 0) admission_.SetIdle(open.flow);
    admission_.OnDone(open.flow, sequence.command_work(),
                      sequence.command_generated());
  }
  sequence.sink().OnCommandDone(result);
  // Without a command it does not wait for memory, even if its last token was
  // held back until the reader caught up and it lost its memory meanwhile.
  Reindex(sequence);
  AdvanceCommands(sequence);
}

void Engine::End(uint64_t id, const absl::Status& status) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  const std::shared_ptr<Sequence> sequence = std::move(it->second);
  sequences_.erase(it);
  StartSamples(id);
  waiting_.Erase(sequence.get());
  resident_.erase(sequence.get());
  stalled_.erase(sequence.get());
  sequence->lease.reset();
  DropSaved(*sequence);
  sequence->base = {};
  sequence->before = {};
  sequence->last_row = nullptr;
  sequence->ForgetKept();
  {
    MutexLock lock(&mu_);
    SetStanding(*sequence, Sequence::Standing::kIdle);
    const auto open = open_.find(id);
    admission_.Close(open->second.flow, open->second.commands > 0);
    open_.erase(open);
  }
  PublishLoad();  // a client that sees its stream end must also see the memory
                  // free
  if (!status.ok() && observer_ != nullptr) observer_->OnFailed(status);
  sequence->ReleaseSink()->OnEnd(status);
}

void Engine::FailAll(const absl::Status& status) {
  while (!sequences_.empty()) End(sequences_.begin()->first, status);
}

void Engine::EndLate() {
  if (waiting_.empty()) return;
  const auto now = Clock::now();
  std::vector<std::pair<uint64_t, absl::Status>> late;
  const std::vector<Sequence*> first = waiting_.First(
      options_.max_num_seqs, {}, [](const Sequence&) { return false; });
  {
    MutexLock lock(&mu_);
    for (const Sequence* sequence : first) {
      if (!sequence->deadline || sequence->admitted) continue;
      absl::Status status = admission_.CheckStart(
          sequence->options().flow, sequence->waiting_work, sequence->submitted,
          now, *sequence->deadline);
      if (!status.ok()) late.emplace_back(sequence->id(), std::move(status));
    }
  }
  for (const auto& [id, status] : late) End(id, status);
}

void Engine::EndStalledClients() {
  const auto limit = Clock::now() - options_.stalled_client_timeout;
  std::vector<uint64_t> expired;
  for (const Sequence* sequence : stalled_) {
    if (sequence->stalled_since < limit) expired.push_back(sequence->id());
  }
  for (uint64_t id : expired) {
    End(id, absl::ResourceExhaustedError(
                absl::StrCat("the client read nothing for ",
                             options_.stalled_client_timeout.count(),
                             " ms while its buffer was full")));
  }
}

void Engine::PublishLoad() {
  counters_.resident = static_cast<int64_t>(resident_.size());
  counters_.waiting = waiting_.size();
  const CacheStats cache = cache_.stats();
  counters_.slots_used = cache.slots.used;
  counters_.pages_used = cache.pages.used;
  const int64_t block_bytes = HostBlockBytes(cache_spec_);
  counters_.swap_bytes_used = saved_blocks_ * block_bytes;
  counters_.prefix_cache_bytes_used =
      (cache.host_blocks.used - saved_blocks_) * block_bytes;
  counters_.snapshots = prefix_cache_.snapshots();
  counters_.snapshot_evictions_total = prefix_cache_.evictions();
  const auto now = Clock::now();
  if (now - last_expiry_ > std::chrono::seconds(1)) {
    last_expiry_ = now;
    states_.Expire();
  }
  const StateStore::Totals states = states_.totals();
  counters_.states = states.states;
  counters_.state_bytes_used = states.bytes;
  if (observer_ != nullptr) observer_->OnLoad(counters_);
  MutexLock lock(&mu_);
  load_ = counters_;
}

}  // namespace recurve
