// How sequences of the engine release and obtain memory (step thread).

#include <utility>

#include "base/status_macros.h"
#include "engine/serving/engine.h"
#include "engine/serving/seconds_between.h"

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

}  // namespace recurve
