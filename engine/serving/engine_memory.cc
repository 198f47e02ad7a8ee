// How sequences of the engine release and obtain memory (step thread).

#include <chrono>
#include <utility>

#include "base/status_macros.h"
#include "engine/serving/engine.h"

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
    if (!sequence.admitted) {
      sequence.admitted = true;
      sequence.queue_seconds =
          std::chrono::duration<double>(Clock::now() - sequence.submitted)
              .count();
      if (observer_ != nullptr) observer_->OnQueued(sequence.queue_seconds);
      sequence.sink().OnAdmitted(sequence.queue_seconds);
    }
  }
  return absl::OkStatus();
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
  } else if (!sequence.rolled_back) {
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
      sequence.base = state;
    }
  }
  sequence.Keep(std::move(state));
  return absl::OkStatus();
}

PrefixDomain Engine::DomainOf(const Sequence& sequence) {
  return {sequence.options().flow.id, sequence.options().cache_key};
}

}  // namespace recurve
