// How sequences of the engine use the prefix cache (step thread).

#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/serving/engine.h"
#include "engine/serving/snapshot_policy.h"

namespace recurve {

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
  if (sequence.wants_scores_of_prompt()) {
    // Computed again, because what is not computed has no logits; but later
    // prompts find it.
    found.prefix = {};
    found.use.cached_tokens = 0;
    found.use.miss = CacheMiss::kDisabled;
  }
  if (prefix_cache_.approximate() && !found.prefix.empty() &&
      !Adopt(sequence, found)) {
    found.prefix = {};
    found.use.cached_tokens = 0;
    found.use.miss = CacheMiss::kUnknown;
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
  bool alike = count % runner_->info().chunk_multiple == 0;
  for (int64_t i = 0; i < count && alike; ++i) {
    alike = kinds[i] == sequence.kind(i);
  }
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
      (!sequence.ends_with_command() && more < options_.min_end_tokens)) {
    return absl::OkStatus();
  }
  return TakeBase(sequence, computed, /*found=*/true).status();
}

absl::StatusOr<bool> Engine::TakeBase(Sequence& sequence, int64_t position,
                                      bool found) {
  RECURVE_ASSIGN_OR_RETURN(
      SnapshotPtr snapshot,
      found
          ? prefix_cache_.Take(DomainOf(sequence),
                               sequence.PrefixTokens(position), *sequence.lease,
                               sequence.base, saved_blocks_)
          : prefix_cache_.Save(*sequence.lease, sequence.base, saved_blocks_));
  if (snapshot == nullptr) return false;
  ++counters_.snapshots_total;
  sequence.before = std::exchange(
      sequence.base, SnapshotPrefix{std::move(snapshot), position});
  return true;
}

absl::Status Engine::TakeSnapshot(Sequence& sequence, int64_t position) {
  if (position == 0 || position > sequence.num_tokens() ||
      sequence.NextPlace(position - 1) != position) {
    return absl::OkStatus();
  }
  RECURVE_ASSIGN_OR_RETURN(const bool taken,
                           TakeBase(sequence, position, /*found=*/true));
  if (taken) sequence.cache_use.written_tokens = position;
  return absl::OkStatus();
}

void Engine::FindEnd(Sequence& sequence) {
  if (!prefix_cache_.enabled() || sequence.imported() || sequence.lease ||
      !sequence.saved.empty() || sequence.num_computed() > 0 ||
      sequence.num_tokens() < options_.min_end_tokens ||
      sequence.wants_logits() || sequence.wants_scores_of_prompt() ||
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
  const int64_t least = sequence.command_work().generate == 0
                            ? kMinAppendedEndTokens
                            : options_.min_end_tokens;
  return prefix_cache_.enabled() && end == sequence.num_tokens() &&
         end >= least && sequence.kind(end - 1) != TokenKind::kStep;
}

absl::Status Engine::TakeEnd(Sequence& sequence, int64_t position) {
  if (sequence.imported() || sequence.base.tokens == position ||
      position < options_.min_end_tokens) {
    return absl::OkStatus();
  }
  return TakeBase(sequence, position, /*found=*/false).status();
}

void Engine::KeepRow(Sequence& sequence, absl::Span<const float> row) {
  const int64_t tokens = sequence.num_tokens();
  sequence.last_row =
      std::make_shared<const std::vector<float>>(row.begin(), row.end());
  if (sequence.imported() || sequence.base.tokens != tokens ||
      tokens < options_.min_end_tokens) {
    return;
  }
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
        const bool taken,
        TakeBase(sequence, sequence.num_computed(), /*found=*/false));
    if (taken) state = sequence.base;
  }
  sequence.Keep(std::move(state));
  return absl::OkStatus();
}

PrefixDomain Engine::DomainOf(const Sequence& sequence) {
  return {sequence.options().flow.id, sequence.options().cache_key};
}

}  // namespace recurve
