// How sequences of the engine release and obtain memory (step thread).

#include <chrono>
#include <optional>
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
  std::optional<SavedSequence> saved;
  if (cache_.CanSave(*sequence.lease)) {
    RECURVE_ASSIGN_OR_RETURN(saved, cache_.Save(*sequence.lease));
    ++counters_.saves_total;
  } else if (sequence.num_computed() > 0) {
    ++counters_.recomputes_total;
  }
  sequence.Preempt(std::move(saved));
  Reindex(sequence);
  ++counters_.preemptions_total;
  return absl::OkStatus();
}

absl::StatusOr<SequenceLease> Engine::LeaseFor(Sequence& sequence) {
  if (!sequence.saved) return cache_.Acquire(sequence.id());
  RECURVE_ASSIGN_OR_RETURN(SequenceLease lease,
                           cache_.Restore(*sequence.saved));
  sequence.saved.reset();
  ++counters_.restores_total;
  return lease;
}

}  // namespace recurve
