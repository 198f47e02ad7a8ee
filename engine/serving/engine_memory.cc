// How sequences of the engine release and obtain memory (step thread).

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/serving/engine.h"
#include "engine/serving/seconds_between.h"
#include "engine/serving/snapshot_policy.h"

namespace recurve {

absl::Status Engine::ApplyMemory(const StepPlan& plan) {
  for (uint64_t id : plan.preempt) {
    RECURVE_RETURN_IF_ERROR(Preempt(*sequences_.at(id)));
  }
  for (uint64_t id : plan.admit) {
    Sequence& sequence = *sequences_.at(id);
    RECURVE_ASSIGN_OR_RETURN(SequenceLease lease, LeaseFor(sequence));
    RECURVE_RETURN_IF_ERROR(cache_.Reserve(lease, sequence.num_tokens()));
    sequence.lease = std::move(lease);
    sequence.passes = 0;
    Reindex(sequence);
    NoteAdmitted(sequence);
  }
  return absl::OkStatus();
}

void Engine::NoteAdmitted(Sequence& sequence) {
  if (std::exchange(sequence.admitted, true)) return;
  sequence.queue_seconds = SecondsBetween(sequence.submitted, Clock::now());
  if (observer_ != nullptr) observer_->OnQueued(sequence.queue_seconds);
  sequence.sink().OnAdmitted(sequence.queue_seconds);
}

void Engine::NotePasses(const StepPlan& plan) {
  const auto each = [&](absl::Span<const uint64_t> ids, auto note) {
    for (const uint64_t id : ids) {
      const auto found = sequences_.find(id);
      if (found != sequences_.end()) note(*found->second);
    }
  };
  each(passed_over_, [](Sequence& s) { s.passed_over = false; });
  each(plan.passed_over, [](Sequence& s) { s.passed_over = true; });
  each(plan.passed, [](Sequence& s) { ++s.passes; });
  passed_over_ = plan.passed_over;
}

absl::Status Engine::Preempt(Sequence& sequence) {
  const SnapshotPrefix& base = sequence.base;
  SnapshotPrefix saved;
  if (!base.empty() && base.tokens == sequence.num_computed()) {
    saved = base;  // nothing was computed since
  } else {
    const int64_t blocks = cache_.BlocksToSave(*sequence.lease, base);
    // Running sequences come before the prompts of later ones.
    prefix_cache_.MakeRoom(blocks);
    if (cache_.CanSave(*sequence.lease, base)) {
      RECURVE_ASSIGN_OR_RETURN(saved.snapshot,
                               cache_.Save(*sequence.lease, base));
      saved.tokens = sequence.num_computed();
      sequence.saved_blocks = blocks;
      saved_blocks_ += blocks;
    }
  }
  if (!saved.empty()) {
    ++counters_.saves_total;
  } else if (sequence.num_computed() > 0) {
    ++counters_.recomputes_total;
  }
  sequence.preempted = !saved.empty();
  sequence.Preempt(std::move(saved));
  Reindex(sequence);
  ++counters_.preemptions_total;
  return absl::OkStatus();
}

absl::StatusOr<SequenceLease> Engine::LeaseFor(Sequence& sequence) {
  if (sequence.saved.empty()) return cache_.Acquire(sequence.id());
  RECURVE_ASSIGN_OR_RETURN(SequenceLease lease,
                           cache_.Restore(sequence.saved, sequence.id()));
  if (sequence.preempted) {
    ++counters_.restores_total;
  } else if (!sequence.rolled_back &&
             !std::exchange(sequence.cached_counted, false)) {
    counters_.cached_prompt_tokens_total += sequence.num_computed();
  }
  DropSaved(sequence);
  return lease;
}

void Engine::DropSaved(Sequence& sequence) {
  sequence.saved = {};
  sequence.preempted = false;
  sequence.rolled_back = false;
  saved_blocks_ -= std::exchange(sequence.saved_blocks, 0);
}

void Engine::LookUp(Sequence& sequence) {
  if (!prefix_cache_.enabled() || sequence.imported() || sequence.lease ||
      !sequence.saved.empty() || sequence.num_computed() > 0 ||
      // What is not computed has no logits.
      sequence.wants_all_logits() ||
      sequence.looked_up == prefix_cache_.version() + 1) {
    return;
  }
  sequence.looked_up = prefix_cache_.version() + 1;
  const PrefixDomain domain = DomainOf(sequence);
  const std::vector<PrefixToken> tokens =
      sequence.PrefixTokens(sequence.num_tokens());
  PrefixCache::Found found =
      prefix_cache_.Find(domain, tokens, sequence.options().snapshot_at);
  CacheUse& use = sequence.cache_use;
  if (prefix_cache_.approximate() && !found.prefix.empty() &&
      !Adopt(sequence, found)) {
    found.prefix = {};
    found.use.cached_tokens = 0;
  }
  if (!sequence.noted) {
    sequence.noted = true;
    prefix_cache_.Note(domain, tokens);
    use = found.use;
    sequence.places = std::move(found.places);
  } else if (sequence.generated() == 0 && use.written_tokens == 0 &&
             !found.prefix.empty()) {
    // Taken since by another sequence.
    use.cached_tokens = found.prefix.tokens;
    if (found.use.miss == CacheMiss::kNone) use.miss = CacheMiss::kNone;
  }
  if (found.prefix.empty()) return;
  sequence.ContinueFrom(std::move(found.prefix));
  // It has less to compute than it was put in line with.
  waiting_.Erase(&sequence);
  waiting_.Insert(&sequence);
  MutexLock lock(&mu_);
  const Flow& flow = sequence.options().flow;
  const int32_t priority = sequence.options().priority;
  admission_.EndWaiting(flow, priority, sequence.waiting_work);
  sequence.waiting_work = sequence.work_left();
  admission_.BeginWaiting(flow, priority, sequence.waiting_work);
}

bool Engine::Adopt(Sequence& sequence, PrefixCache::Found& found) {
  const int64_t count = found.prefix.tokens;
  const auto kinds = found.kinds.first(count);
  const bool alike = count % runner_->info().chunk_multiple == 0 &&
                     std::all_of(kinds.begin(), kinds.end(),
                                 [&, i = int64_t{0}](TokenKind kind) mutable {
                                   return kind == sequence.kind(i++);
                                 });
  if (alike) return true;
  // What it has given depends on how its tokens were computed.
  if (sequence.noted || sequence.admitted || sequence.from_state() ||
      sequence.generated() > 0) {
    return false;
  }
  sequence.AdoptKinds(kinds);
  found.use.approximate = true;
  return true;
}

absl::Status Engine::TakeCommandEnd(Sequence& sequence) {
  // A step may be in flight, if the sequence has met a stop condition.
  const int64_t computed = sequence.launched_computed();
  const int64_t more = computed - sequence.base.tokens;
  if (!prefix_cache_.finds_generated() || sequence.imported() ||
      !sequence.lease || computed > sequence.num_tokens() ||
      computed < kMinSnapshotTokens || more == 0 ||
      // Not each of many short commands.
      (!sequence.ends_with_command() && more < kMinEndTokens)) {
    return absl::OkStatus();
  }
  RECURVE_ASSIGN_OR_RETURN(
      SnapshotPtr snapshot,
      prefix_cache_.Take(DomainOf(sequence), sequence.PrefixTokens(computed),
                         *sequence.lease, sequence.base, saved_blocks_));
  if (snapshot == nullptr) return absl::OkStatus();
  ++counters_.snapshots_total;
  sequence.before = std::exchange(
      sequence.base, SnapshotPrefix{std::move(snapshot), computed});
  return absl::OkStatus();
}

absl::Status Engine::TakeSnapshot(Sequence& sequence, int64_t position) {
  if (position == 0 || position > sequence.num_tokens() ||
      sequence.NextPlace(position - 1) != position) {
    return absl::OkStatus();
  }
  RECURVE_ASSIGN_OR_RETURN(
      SnapshotPtr snapshot,
      prefix_cache_.Take(DomainOf(sequence), sequence.PrefixTokens(position),
                         *sequence.lease, sequence.base, saved_blocks_));
  if (snapshot == nullptr) return absl::OkStatus();
  ++counters_.snapshots_total;
  sequence.cache_use.written_tokens = position;
  sequence.base = {std::move(snapshot), position};
  return absl::OkStatus();
}

void Engine::FindEnd(Sequence& sequence) {
  if (!prefix_cache_.enabled() || sequence.imported() || sequence.lease ||
      !sequence.saved.empty() || sequence.num_computed() > 0 ||
      sequence.num_tokens() < kMinEndTokens || sequence.wants_logits() ||
      sequence.command_work().generate == 0 ||
      // A step takes the snapshots that it names.
      (cache_spec_.slot_bytes > 0 && !sequence.options().snapshot_at.empty())) {
    return;
  }
  const PromptEnds::End* const end = prefix_cache_.FindEnd(
      DomainOf(sequence), sequence.PrefixTokens(sequence.num_tokens()));
  if (end == nullptr) return;
  sequence.DrawFrom(end->row);
  if (!sequence.drawn) return;  // the step says why
  sequence.cache_use.cached_tokens = sequence.num_tokens();
  sequence.cache_use.diverged_at = sequence.num_tokens();
  sequence.cache_use.miss = CacheMiss::kNone;
  sequence.noted = true;
  sequence.last_row = end->row;
  sequence.ContinueFrom({end->snapshot, sequence.num_tokens()});
  sequence.cached_counted = true;
  counters_.cached_prompt_tokens_total += sequence.num_tokens();
}

bool Engine::KeepsRow(const Sequence& sequence, int64_t end) const {
  return prefix_cache_.enabled() && end == sequence.num_tokens() &&
         end >= kMinEndTokens && sequence.kind(end - 1) != TokenKind::kStep;
}

absl::Status Engine::TakeEnd(Sequence& sequence, int64_t position) {
  if (sequence.imported() || sequence.base.tokens == position) {
    return absl::OkStatus();
  }
  RECURVE_ASSIGN_OR_RETURN(
      SnapshotPtr snapshot,
      prefix_cache_.Save(*sequence.lease, sequence.base, saved_blocks_));
  if (snapshot == nullptr) return absl::OkStatus();
  ++counters_.snapshots_total;
  sequence.before = std::exchange(
      sequence.base, SnapshotPrefix{std::move(snapshot), position});
  return absl::OkStatus();
}

void Engine::KeepRow(Sequence& sequence, absl::Span<const float> row) {
  const int64_t tokens = sequence.num_tokens();
  sequence.last_row =
      std::make_shared<const std::vector<float>>(row.begin(), row.end());
  if (sequence.imported() || sequence.base.tokens != tokens) return;
  prefix_cache_.PutEnd(DomainOf(sequence), sequence.PrefixTokens(tokens),
                       {sequence.base.snapshot, sequence.last_row});
}

absl::Status Engine::KeepPoint(Sequence& sequence) {
  SnapshotPrefix state;
  if (sequence.lease && sequence.base.tokens == sequence.num_computed()) {
    state = sequence.base;
  } else if (!sequence.lease && sequence.saved_blocks == 0) {
    // Not what preemption saved, which is not the cache's.
    state = sequence.saved;
  } else if (sequence.lease) {
    RECURVE_ASSIGN_OR_RETURN(
        SnapshotPtr snapshot,
        prefix_cache_.Save(*sequence.lease, sequence.base, saved_blocks_));
    if (snapshot != nullptr) {
      state = {std::move(snapshot), sequence.num_computed()};
      sequence.before = std::exchange(sequence.base, state);
    }
  }
  sequence.Keep(std::move(state));
  return absl::OkStatus();
}

PrefixDomain Engine::DomainOf(const Sequence& sequence) {
  return {sequence.options().flow.id, sequence.options().cache_key};
}

}  // namespace recurve
