// The step thread of the engine: from messages to a step that is launched.

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/program/step_runs.h"
#include "engine/serving/engine.h"
#include "engine/serving/seconds_between.h"
#include "engine/serving/snapshot_policy.h"

namespace recurve {
namespace {

// One token will be left to compute after the step in flight: the scheduler
// treats that as decoding.
bool Decodes(const Sequence& sequence) {
  return sequence.launched_tokens() - sequence.launched_computed() == 1;
}

// Order of a sequence's next `count` tokens in a step: single decode tokens
// first, then tokens that an executor may multiply in the same way, then other
// prompts.
int GroupOf(const Sequence& sequence, int64_t count) {
  const int64_t begin = sequence.launched_computed();
  // Tokens after these are drawn by the step in flight.
  const int64_t end = std::min(begin + count, sequence.num_tokens());
  for (int64_t position = begin; position < end; ++position) {
    const TokenKind kind = sequence.kind(position);
    if (kind != TokenKind::kStep && !IsShortPrompt(kind)) return 2;
  }
  const bool step = begin == end || sequence.kind(begin) == TokenKind::kStep;
  return count == 1 && step ? 0 : 1;
}

absl::Status DeviceFailed(const absl::Status& status) {
  return absl::InternalError(
      absl::StrCat("the device failed: ", status.message()));
}

}  // namespace

void Engine::Loop() {
  while (TakeMessages()) {
    EndStalledClients();
    if (const absl::Status status = health(); !status.ok()) {
      FailAll(DeviceFailed(status));  // accepted before the failure was known
    } else {
      EndLate();
      if (pending_ != nullptr || HasRunnable()) Step();
    }
    PublishLoad();
  }
  if (pending_ != nullptr) {
    StepOutput unused;
    (void)runner_->Wait(&unused);
  }
  FailAll(absl::UnavailableError("the server is shutting down"));
  prefix_cache_.Clear();
  PublishLoad();
}

void Engine::Reindex(Sequence& sequence) {
  const bool has_work = sequence.command_active() && !sequence.stalled;
  const auto standing = !has_work        ? Sequence::Standing::kIdle
                        : sequence.lease ? Sequence::Standing::kRunning
                                         : Sequence::Standing::kWaiting;
  if (sequence.lease) {
    resident_.insert(&sequence);
  } else {
    resident_.erase(&sequence);
  }
  if (standing == Sequence::Standing::kWaiting) {
    waiting_.Insert(&sequence);
  } else {
    waiting_.Erase(&sequence);
  }
  if (sequence.stalled) {
    stalled_.insert(&sequence);
  } else {
    stalled_.erase(&sequence);
  }
  if (standing == sequence.standing) return;
  MutexLock lock(&mu_);
  SetStanding(sequence, standing);
}

void Engine::SetStanding(Sequence& sequence, Sequence::Standing standing) {
  const Flow& flow = sequence.options().flow;
  const int32_t priority = sequence.options().priority;
  if (sequence.standing == Sequence::Standing::kWaiting) {
    admission_.EndWaiting(flow, priority, sequence.waiting_work);
  } else if (sequence.standing == Sequence::Standing::kRunning) {
    admission_.EndRunning(flow);
  }
  sequence.standing = standing;
  if (standing == Sequence::Standing::kWaiting) {
    sequence.waiting_work = sequence.work_left();
    admission_.BeginWaiting(flow, priority, sequence.waiting_work);
  } else if (standing == Sequence::Standing::kRunning) {
    admission_.BeginRunning(flow);
  }
}

bool Engine::HasRunnable() const {
  return !waiting_.empty() ||
         std::any_of(resident_.begin(), resident_.end(),
                     [](const Sequence* sequence) {
                       return sequence->command_active() && !sequence->stalled;
                     });
}

bool Engine::TakeMessages() {
  std::vector<Message> messages;
  bool stopping = false;
  {
    const bool runnable = pending_ != nullptr || HasRunnable();
    MutexLock lock(&mu_);
    while (!runnable && inbox_.empty() && !stop_) {
      worked_ = false;
      // Wake up periodically while there are clients to time out.
      if (sequences_.empty()) {
        wake_.Wait(&mu_);
      } else if (!wake_.WaitFor(&mu_, std::chrono::milliseconds(100))) {
        break;
      }
    }
    if (stop_) {
      // Accepted sequences must still get their OnEnd.
      stopping = true;
    }
    messages.swap(inbox_);
  }
  if (!stopping) {
    for (Message& message : messages) Handle(message);
    return true;
  }
  const absl::Status stopped =
      absl::UnavailableError("the server is shutting down");
  for (Message& message : messages) {
    if (auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&message)) {
      sequences_.emplace((*sequence)->id(), *sequence);
    } else if (auto* request = std::get_if<StateRequest>(&message)) {
      request->done(stopped);
    } else if (auto* room = std::get_if<StateRoom>(&message)) {
      room->done(stopped);
    }
  }
  return false;
}

void Engine::Handle(Message& message) {
  if (auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&message)) {
    sequences_.emplace((*sequence)->id(), *sequence);
    if (!WaitForLeader(**sequence)) AdvanceCommands(**sequence);
  } else if (auto* extension = std::get_if<Extension>(&message)) {
    if (const auto it = sequences_.find(extension->id);
        it != sequences_.end()) {
      const std::shared_ptr<Sequence> held = it->second;
      held->Enqueue(std::move(extension->command));
      AdvanceCommands(*held);
    }
  } else if (auto* closing = std::get_if<Closing>(&message)) {
    if (const auto it = sequences_.find(closing->id); it != sequences_.end()) {
      const std::shared_ptr<Sequence> held = it->second;
      held->CloseAfterLastCommand();
      AdvanceCommands(*held);
    }
  } else if (auto* cancellation = std::get_if<Cancellation>(&message)) {
    End(cancellation->id, cancellation->status);
  } else if (auto* resumption = std::get_if<Resumption>(&message)) {
    if (const auto it = sequences_.find(resumption->id);
        it != sequences_.end()) {
      const std::shared_ptr<Sequence> resumed = it->second;
      resumed->stalled = false;
      Reindex(*resumed);
      if (resumed->held) {
        const SampleResult sample = *std::exchange(resumed->held, std::nullopt);
        Deliver(*resumed, sample, StepEvent());
        FinishCommands(*resumed);
      }
    }
  } else if (auto* progress = std::get_if<ReaderProgress>(&message)) {
    if (const auto it = sequences_.find(progress->id); it != sequences_.end()) {
      it->second->stalled_since = Clock::now();
    }
  } else if (auto* request = std::get_if<StateRequest>(&message)) {
    request->done(StateOf(*request));
  } else if (auto* room = std::get_if<StateRoom>(&message)) {
    room->done(RoomFor(*room));
  } else if (std::get_if<DroppedState>(&message) != nullptr) {
    // Freed with the message.
  } else {
    // Draining: sequences between two commands end now, the others when idle.
    std::vector<std::shared_ptr<Sequence>> all;
    for (const auto& [id, sequence] : sequences_) all.push_back(sequence);
    for (const auto& sequence : all) AdvanceCommands(*sequence);
  }
}

bool Engine::WaitForLeader(const Sequence& sequence) {
  // Together they compute a short prompt as fast.
  const int64_t least =
      2 * std::max<int64_t>(kMinSnapshotTokens, runner_->info().chunk_multiple);
  const auto leader = sequences_.find(sequence.leader);
  if (leader == sequences_.end() || leader->second->first_token_seen) {
    return false;
  }
  // Its log-probabilities of the prompt come before any token.
  if (!leader->second->wants_scores() &&
      (!prefix_cache_.enabled() ||
       sequence.work_left().prompt_tokens < least)) {
    return false;
  }
  samples_[sequence.leader].push_back(sequence.id());
  return true;
}

void Engine::StartSamples(uint64_t leader) {
  const auto found = samples_.find(leader);
  if (found == samples_.end()) return;
  const std::vector<uint64_t> ids = std::move(found->second);
  samples_.erase(found);
  for (const uint64_t id : ids) {
    const auto sequence = sequences_.find(id);
    if (sequence != sequences_.end()) AdvanceCommands(*sequence->second);
  }
}

void Engine::AdvanceCommands(Sequence& sequence) {
  if (sequence.command_active()) return;
  if (sequence.StartNextCommand()) {
    counters_.prompt_tokens_total += sequence.command_appended();
    if (sequence.saved.empty()) {
      DropSaved(sequence);
    } else if (sequence.rolled_back) {
      sequence.preempted = false;
      saved_blocks_ -= std::exchange(sequence.saved_blocks, 0);
    }
    FindEnd(sequence);
    PlanPlaces(sequence);
    if (!sequence.drawn || sequence.command_work().generate == 0) {
      Reindex(sequence);
      return;
    }
    NoteAdmitted(sequence);  // this token needs no memory
    const SampleResult sample = *std::exchange(sequence.drawn, std::nullopt);
    if (sequence.stalled) {
      sequence.held = sample;
    } else {
      Deliver(sequence, sample, StepEvent());
    }
    if (sequence.CommandComplete()) {
      FinishCommands(sequence);
    } else {
      Reindex(sequence);
    }
  } else if (sequence.finished()) {
    StepEvent rest;
    rest.index = sequence.generated();
    rest.text = sequence.FlushText();
    // The stream ends here, so it does not matter whether its reader is behind.
    if (!rest.text.empty()) (void)sequence.sink().OnStep(std::move(rest));
    End(sequence.id(), absl::OkStatus());
  } else if (draining_.load()) {
    End(sequence.id(), absl::UnavailableError("the server is draining"));
  }
}

SequenceView Engine::View(const Sequence& sequence) const {
  SequenceView view;
  view.id = sequence.id();
  view.priority = sequence.options().priority;
  view.arrival = sequence.arrival();
  view.num_tokens = sequence.launched_tokens();
  view.num_computed = sequence.launched_computed();
  view.whole_tokens = sequence.whole_tokens();
  if (sequence.lease) view.page_ids = sequence.lease->pages();
  view.pages = static_cast<int64_t>(view.page_ids.size());
  view.has_work = sequence.HasWork() && !sequence.stalled;
  view.ending = sequence.in_flight() && !view.has_work;
  view.from_host = FromHost(sequence);
  view.cut = sequence.NextPlace(view.num_computed);
  view.prompt_tokens = sequence.prompt_work();
  view.flow = sequence.options().flow.id;
  view.weight = sequence.options().flow.weight;
  view.passed_over = sequence.passed_over;
  view.passes = sequence.passes;
  // A step emits all rows that a command wants to its stream at once.
  if (sequence.wants_all_logits()) {
    view.max_step_tokens = max_step_logits();
    // A longer whole prompt is a recomputation, whose logits were already
    // delivered.
    if (view.num_computed < view.whole_tokens) {
      view.max_step_tokens = std::max(view.max_step_tokens, view.whole_tokens);
    }
  }
  return view;
}

StepPlan Engine::Plan() {
  SchedulerLimits limits = {options_.max_num_batched_tokens,
                            options_.max_chunk_tokens,
                            cache_spec_.page_bytes == 0 ? 0 : kPageTokens,
                            runner_->info().chunk_multiple};
  std::vector<SequenceView> resident;
  int64_t decoding = 0;
  for (const Sequence* sequence : resident_) {
    resident.push_back(View(*sequence));
    decoding += resident.back().has_work && !resident.back().from_host &&
                Decodes(*sequence);
  }
  const bool beside = pending_ != nullptr && pending_->decoding > 0;
  limits.max_prompt_tokens =
      pacer_.MaxTokens(decoding, beside ? pending_->paced_tokens : 0);
  if (limits.max_prompt_tokens > 0) {
    limits.max_prompt_tokens =
        std::max(limits.max_prompt_tokens, limits.chunk_multiple);
  }
  const auto paces = [&](const Sequence& sequence) {
    return pacer_.Paces(decoding, sequence.prompt_work());
  };
  size_t next = 0;
  std::map<uint32_t, int64_t> ahead;  // in memory, with work, by flow
  for (const Sequence* sequence : resident_) {
    SequenceView& view = resident[next++];
    view.paced = paces(*sequence);
    ahead[view.flow] += view.has_work;
  }
  // At most max_num_seqs can be admitted in one step.
  const auto num_resident = static_cast<int64_t>(resident.size());
  std::vector<SequenceView> all = std::move(resident);
  const CacheStats cache = cache_.stats();
  // Tokens of waiting prompts that the prefix cache compares in a step, beyond
  // one prompt: a millisecond or two. Those in front come first.
  int64_t compared = int64_t{1} << 18;
  for (Sequence* sequence :
       waiting_.First(options_.max_num_seqs, ahead, paces)) {
    if (compared > 0) {
      if (sequence->looked_up != prefix_cache_.version() + 1) {
        compared -= sequence->num_tokens();
      }
      LookUp(*sequence);
    }
    all.push_back(View(*sequence));
    all.back().paced = paces(*sequence);
    // Looked for only if it matters.
    if (!sequence->saved.empty() &&
        cache.pages.free <= PagesFor(sequence->num_tokens(), cache_spec_)) {
      all.back().found_pages = cache_.HeldPages(sequence->saved);
    }
  }
  ShareScores(absl::MakeSpan(all));
  AssignTurns(absl::MakeSpan(all));
  const auto views = absl::MakeConstSpan(all);
  // A step has room for one token of each of max_num_seqs sequences; the runner
  // may have more slots.
  const int64_t free_slots = std::clamp<int64_t>(
      options_.max_num_seqs - num_resident, 0, cache.slots.free);
  return PlanStep(limits, cache.pages.free, free_slots,
                  views.first(num_resident), views.subspan(num_resident));
}

absl::StatusOr<Engine::BatchEntry> Engine::AddToBatch(
    const StepPlan::Entry& planned, int32_t batch_index, StepBatch* batch) {
  BatchEntry entry{sequences_.at(planned.id), planned.num_tokens, {}, {}};
  Sequence& sequence = *entry.sequence;
  const int64_t begin = sequence.launched_computed();
  const int64_t end = begin + planned.num_tokens;
  RECURVE_RETURN_IF_ERROR(cache_.Reserve(*sequence.lease, end));
  RECURVE_RETURN_IF_ERROR(
      cache_.BeginUpdate(*sequence.lease, begin, planned.num_tokens));
  batch->prompt_ends.push_back(sequence.prompt_end(begin));
  for (int64_t position = begin; position < end; ++position) {
    entry.draws = position + 1 == end && sequence.WillDraw(end);
    const bool sampled =
        entry.draws || (position + 1 == end && sequence.WillSample(end));
    const bool wanted = sequence.WantsLogits(position);
    const bool scored = sequence.WantsScore(position);
    if (sampled || wanted || scored) {
      const auto index = static_cast<int32_t>(batch->logit_rows.size());
      batch->logit_rows.push_back(static_cast<int32_t>(batch->tokens.size()));
      if (wanted) entry.logits.push_back({position, index});
      if (scored) entry.scores.push_back({position, index});
      batch->wants_logits |= wanted || scored;
      if (sampled) {
        entry.sample = static_cast<int32_t>(batch->samples.size());
        batch->samples.push_back(sequence.MakeSampleRequest(index));
        if (KeepsRow(sequence, end) &&
            batch->kept.size() < static_cast<size_t>(kMaxKeptRows)) {
          entry.kept = static_cast<int32_t>(batch->kept.size());
          batch->kept.push_back(index);
        }
      }
    }
    if (position < sequence.num_tokens()) {
      batch->tokens.push_back(sequence.tokens()[position]);
      batch->kinds.push_back(sequence.kind(position));
    } else {
      batch->fed.push_back({static_cast<int32_t>(batch->tokens.size()),
                            sequence.sample_in_flight()});
      batch->tokens.push_back(0);
      batch->kinds.push_back(TokenKind::kStep);
    }
    batch->positions.push_back(position);
    batch->row_sequence.push_back(batch_index);
  }
  batch->query_start.push_back(static_cast<int32_t>(batch->tokens.size()));
  batch->slots.push_back(sequence.lease->slot());
  return entry;
}

absl::Status Engine::BuildBatch(const StepPlan& plan, PendingStep* step) {
  StepBatch& batch = step->batch;
  std::vector<BatchEntry>& entries = step->entries;
  batch.query_start.push_back(0);
  batch.wants_logits = false;
  RECURVE_RETURN_IF_ERROR(ApplyMemory(plan));
  NotePasses(plan);
  for (const StepPlan::Entry& planned : plan.entries) {
    RECURVE_ASSIGN_OR_RETURN(
        BatchEntry entry,
        AddToBatch(planned, static_cast<int32_t>(entries.size()), &batch));
    entries.push_back(std::move(entry));
  }
  for (const BatchEntry& entry : entries) {
    batch.page_table_stride =
        std::max(batch.page_table_stride,
                 static_cast<int64_t>(entry.sequence->lease->pages().size()));
  }
  batch.page_table.assign(batch.page_table_stride * batch.num_sequences(), 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto pages = entries[i].sequence->lease->pages();
    std::copy(pages.begin(), pages.end(),
              batch.page_table.begin() +
                  static_cast<int64_t>(i) * batch.page_table_stride);
  }
  CutRuns(&batch);
  return absl::OkStatus();
}

bool Engine::FromHost(const Sequence& sequence) const {
  return !sequence.saved.empty() ||
         (sequence.lease && !cache_.Restored(*sequence.lease));
}

// Whether the step can be launched before the pending one is committed. It must
// not do anything that would have to be undone if a sample in flight ends a
// sequence: no state may go beyond a token that a later command may follow, and
// no sequence may lose memory. Logits have only one buffer on the host. A step
// that waits for a copy is for when nothing else can run, which is not known
// yet.
bool Engine::MayRunAhead(const StepPlan& plan) const {
  if (plan.entries.empty() || !plan.preempt.empty()) return false;
  for (const BatchEntry& entry : pending_->entries) {
    if (entry.sequence->lease && entry.sequence->MustWait()) return false;
  }
  return std::none_of(plan.entries.begin(), plan.entries.end(),
                      [&](const StepPlan::Entry& entry) {
                        const Sequence& sequence = *sequences_.at(entry.id);
                        return sequence.wants_logits() ||
                               sequence.wants_scores() || FromHost(sequence);
                      });
}

absl::StatusOr<std::unique_ptr<Engine::PendingStep>> Engine::LaunchNext() {
  const auto started = Clock::now();
  StepPlan plan = Plan();
  if (pending_ != nullptr && !MayRunAhead(plan)) return nullptr;
  // The scheduler guarantees progress; without it the loop would spin for ever.
  RECURVE_CHECK(!plan.entries.empty());
  // Groups tokens that an executor computes alike.
  auto rest = plan.entries.begin();
  for (const int group : {0, 1}) {
    rest = std::stable_partition(
        rest, plan.entries.end(), [&](const StepPlan::Entry& entry) {
          return GroupOf(*sequences_.at(entry.id), entry.num_tokens) == group;
        });
  }
  auto step = std::make_unique<PendingStep>();
  step->started = started;
  step->follows_work = std::exchange(worked_, true);
  for (const StepPlan::Entry& entry : plan.entries) {
    step->decoding += Decodes(*sequences_.at(entry.id));
  }
  for (const StepPlan::Entry& entry : plan.entries) {
    const Sequence& sequence = *sequences_.at(entry.id);
    if (Decodes(sequence)) continue;
    step->prompt_tokens += entry.num_tokens;
    if (pacer_.Paces(step->decoding, sequence.prompt_work()))
      step->paced_tokens += entry.num_tokens;
  }
  RECURVE_RETURN_IF_ERROR(BuildBatch(plan, step.get()));
  RECURVE_RETURN_IF_ERROR(runner_->Launch(step->batch));
  for (const BatchEntry& entry : step->entries) {
    cache_.CommitUpdate(*entry.sequence->lease, entry.num_tokens);
    entry.sequence->Launched(entry.num_tokens, entry.draws ? -1 : entry.sample);
    // The copy follows this step and precedes the next.
    if (runner_->runs_ahead()) {
      const int64_t computed = entry.sequence->launched_computed();
      RECURVE_RETURN_IF_ERROR(TakeSnapshot(*entry.sequence, computed));
      if (entry.kept >= 0) {
        RECURVE_RETURN_IF_ERROR(TakeEnd(*entry.sequence, computed));
      }
    }
  }
  return step;
}

void Engine::Step() {
  step_started_ns_.store(NowNs());
  std::unique_ptr<PendingStep> step;  // the one to commit
  StepOutput output;
  const auto run = [&]() -> absl::Status {
    if (pending_ == nullptr) {
      RECURVE_ASSIGN_OR_RETURN(pending_, LaunchNext());
    }
    std::unique_ptr<PendingStep> next;
    if (runner_->runs_ahead()) {
      RECURVE_ASSIGN_OR_RETURN(next, LaunchNext());
    }
    step = std::exchange(pending_, std::move(next));
    return runner_->Wait(&output);
  };
  if (const absl::Status status = run(); !status.ok()) {
    {
      MutexLock lock(&mu_);
      health_ = status;
    }
    FailAll(DeviceFailed(status));
    pending_.reset();
    step_started_ns_.store(0);
    return;
  }
  const auto computed = Clock::now();
  CommitStep(*step, output);
  step_started_ns_.store(0);
  // The time of a step launched ahead is measured from the end of the previous
  // one.
  const auto done = Clock::now();
  const double seconds =
      SecondsBetween(std::max(last_step_done_, step->started), done);
  last_step_done_ = done;
  // The host's launches in the meantime do not count, so the pacer gets the
  // device's time if it is measured.
  double paced = seconds;
  if (output.device_seconds > 0) {
    paced = output.device_seconds;
    if (step->follows_work) paced += output.device_idle_seconds;
    // Log-probabilities of prompts are work of this thread, and delay the next
    // step.
    if (step->batch.wants_logits) paced += SecondsBetween(computed, done);
  }
  pacer_.OnStep(step->decoding, step->prompt_tokens, step->paced_tokens, paced);
  ++counters_.steps_total;
  if (step->follows_work) {
    counters_.device_idle_seconds_total += output.device_idle_seconds;
    MutexLock lock(&mu_);
    admission_.OnStep(seconds);
  }
  PublishLoad();
  if (observer_ != nullptr) {
    observer_->OnStepDone(step->batch.num_sequences(), step->batch.num_tokens(),
                          seconds);
  }
}

}  // namespace recurve
