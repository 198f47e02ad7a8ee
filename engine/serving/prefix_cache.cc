#include "engine/serving/prefix_cache.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "engine/serving/snapshot_policy.h"

namespace recurve {
namespace {

// Tokens of prompts that are remembered without a snapshot: some 8 bytes each.
constexpr int64_t kMaxNotedTokens = int64_t{4} << 20;

}  // namespace

PrefixCache::PrefixCache(const Options& options, CacheManager* cache)
    : options_(options), cache_(cache), index_(kMaxNotedTokens) {}

PrefixCache::Found PrefixCache::Find(const PrefixDomain& domain,
                                     absl::Span<const PrefixToken> tokens) {
  Found found;
  if (!options_.enabled) return found;
  const auto count = static_cast<int64_t>(tokens.size());
  const PrefixMatch match =
      options_.has_state ? index_.Find(domain, tokens, count - 1)
                         : index_.FindCovering(domain, tokens, count - 1);
  if (match.length >= kMinSnapshotTokens) {
    found.prefix = {std::static_pointer_cast<const Snapshot>(match.payload),
                    match.length};
  }
  SnapshotRequest request;
  request.tokens = count;
  request.cached = found.prefix.tokens;
  request.chunk_multiple = options_.chunk_multiple;
  request.has_state = options_.has_state;
  if (match.common > found.prefix.tokens && match.common < count) {
    request.parted_at = match.common;
  }
  found.places = PlanSnapshots(request);
  index_.Note(domain, tokens);

  CacheUse& use = found.use;
  use.cached_tokens = found.prefix.tokens;
  use.diverged_at = match.common;
  if (found.places.empty()) {
    // Nothing longer could be in the cache.
    use.miss = found.prefix.tokens > 0 ? CacheMiss::kNone : CacheMiss::kShort;
  } else if (match.evicted) {
    use.miss = CacheMiss::kEvicted;
  } else if (match.common == 0) {
    use.miss = CacheMiss::kUnknown;
  } else {
    use.miss = CacheMiss::kDiverged;
  }
  return found;
}

absl::StatusOr<SnapshotPtr> PrefixCache::Take(
    const PrefixDomain& domain, absl::Span<const PrefixToken> tokens,
    const SequenceLease& lease, const SnapshotPrefix& base) {
  if (!options_.enabled) return nullptr;
  const int64_t blocks = cache_->BlocksToSave(lease, base);
  const auto free = [&] { return cache_->stats().host_blocks.free; };
  if (blocks == 0 ||
      blocks + options_.reserve > int64_t{cache_->stats().host_blocks.total}) {
    return nullptr;
  }
  MakeRoom(blocks + options_.reserve);
  // Preempted sequences may hold what snapshots would need.
  if (free() < blocks + options_.reserve) return nullptr;
  RECURVE_ASSIGN_OR_RETURN(SnapshotPtr snapshot, cache_->Save(lease, base));
  index_.Insert(domain, tokens, snapshot);
  ++version_;
  return snapshot;
}

void PrefixCache::MakeRoom(int64_t blocks) {
  while (cache_->stats().host_blocks.free < blocks && index_.EvictOldest()) {
    ++evictions_;
  }
}

void PrefixCache::Clear() { index_.Clear(); }

}  // namespace recurve
