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

// Logits and tokens of whole prompts.
constexpr int64_t kMaxEndBytes = int64_t{256} << 20;

// What the index has at a place.
struct Entry {
  SnapshotPtr snapshot;
  std::vector<TokenKind> kinds;  // with approximate()
};

const Entry& EntryOf(const PrefixMatch& match) {
  return *static_cast<const Entry*>(match.payload.get());
}

}  // namespace

PrefixCache::PrefixCache(const Options& options, CacheManager* cache)
    : options_(options),
      cache_(cache),
      index_(kMaxNotedTokens),
      ends_(kMaxEndBytes) {}

absl::Span<const PrefixToken> PrefixCache::Comparable(
    absl::Span<const PrefixToken> tokens) {
  if (!finds_generated()) return tokens;
  compared_.assign(tokens.begin(), tokens.end());
  for (PrefixToken& token : compared_) token.kind = TokenKind::kPrompt;
  return compared_;
}

PrefixMatch PrefixCache::Match(const PrefixDomain& domain,
                               absl::Span<const PrefixToken> tokens) {
  const auto most = static_cast<int64_t>(tokens.size()) - 1;
  return options_.has_state ? index_.Find(domain, tokens, most)
                            : index_.FindCovering(domain, tokens, most);
}

PrefixCache::Found PrefixCache::Find(const PrefixDomain& domain,
                                     absl::Span<const PrefixToken> tokens,
                                     absl::Span<const int64_t> named) {
  Found found;
  if (!options_.enabled) return found;
  const auto count = static_cast<int64_t>(tokens.size());
  const PrefixMatch match = Match(domain, Comparable(tokens));
  if (match.length >= kMinSnapshotTokens) {
    const Entry& entry = EntryOf(match);
    found.prefix = {entry.snapshot, match.length};
    found.kinds = entry.kinds;
  }
  SnapshotRequest request;
  request.tokens = count;
  request.cached = found.prefix.tokens;
  request.chunk_multiple = options_.chunk_multiple;
  request.has_state = options_.has_state;
  request.named = named;
  if (match.common > found.prefix.tokens && match.common < count) {
    request.parted_at = match.common;
  }
  // The most that any snapshot could give.
  const int64_t most = count - 1 - (count - 1) % options_.chunk_multiple;
  if (found.prefix.tokens < most || options_.has_state) {
    found.places = PlanSnapshots(request);
  }

  CacheUse& use = found.use;
  use.cached_tokens = found.prefix.tokens;
  use.diverged_at = match.common;
  if (most < kMinSnapshotTokens) {
    use.miss = CacheMiss::kShort;
  } else if (found.prefix.tokens >= most) {
    use.miss = CacheMiss::kNone;
  } else if (match.evicted) {
    use.miss = CacheMiss::kEvicted;
  } else {
    use.miss = match.common == 0 ? CacheMiss::kUnknown : CacheMiss::kDiverged;
  }
  return found;
}

void PrefixCache::Note(const PrefixDomain& domain,
                       absl::Span<const PrefixToken> tokens) {
  if (options_.enabled) index_.Note(domain, Comparable(tokens));
}

absl::StatusOr<SnapshotPtr> PrefixCache::Save(const SequenceLease& lease,
                                              const SnapshotPrefix& base,
                                              int64_t preempted) {
  if (!options_.enabled) return nullptr;
  const CacheManager& cache = *cache_;
  const int64_t blocks = cache.BlocksToSave(lease, base);
  if (blocks == 0 || !FindRoom(blocks, preempted)) return nullptr;
  return cache_->Save(lease, base);
}

const PromptEnds::End* PrefixCache::FindEnd(
    const PrefixDomain& domain, absl::Span<const PrefixToken> tokens) {
  const PromptEnds::End* const end = ends_.Find(domain, tokens);
  if (end == nullptr) return nullptr;
  // Its other snapshots are in use, too.
  Match(domain, Comparable(tokens));
  return end;
}

absl::StatusOr<SnapshotPtr> PrefixCache::Blank(int64_t tokens,
                                               int64_t preempted) {
  const int64_t blocks = HostBlocksFor(tokens, cache_->spec());
  if (!options_.enabled || !FindRoom(blocks, preempted)) return nullptr;
  return cache_->Blank(tokens);
}

bool PrefixCache::FindRoom(int64_t blocks, int64_t preempted) {
  const int64_t reserve = std::max<int64_t>(options_.reserve - preempted, 0);
  MakeRoom(blocks + reserve);
  const CacheManager& cache = *cache_;
  return cache.stats().host_blocks.free >= blocks + reserve;
}

absl::StatusOr<SnapshotPtr> PrefixCache::Take(
    const PrefixDomain& domain, absl::Span<const PrefixToken> tokens,
    const SequenceLease& lease, const SnapshotPrefix& base, int64_t preempted) {
  RECURVE_ASSIGN_OR_RETURN(SnapshotPtr snapshot, Save(lease, base, preempted));
  if (snapshot == nullptr) return nullptr;
  auto entry = std::make_shared<Entry>(Entry{snapshot, {}});
  if (approximate()) {
    for (const PrefixToken& token : tokens) entry->kinds.push_back(token.kind);
  }
  index_.Insert(domain, Comparable(tokens), std::move(entry));
  ++version_;
  return snapshot;
}

void PrefixCache::MakeRoom(int64_t blocks) {
  // Snapshots that sequences hold, or that share pages, free little: then the
  // others are worth more than this one.
  constexpr int kFutile = 4;
  const CacheManager& cache = *cache_;
  if (blocks > cache.stats().host_blocks.total) return;
  int futile = 0;
  for (int64_t free = cache.stats().host_blocks.free;
       free < blocks && futile < kFutile;) {
    // In turn, since each is as likely to be of use.
    evicts_end_ = !evicts_end_;
    if (!Evict(evicts_end_) && !Evict(!evicts_end_)) return;
    const int64_t now = cache.stats().host_blocks.free;
    futile = now > free ? 0 : futile + 1;
    free = now;
  }
}

bool PrefixCache::Evict(bool end) {
  if (end) return ends_.EvictOldest();
  if (!index_.EvictOldest()) return false;
  ++evictions_;
  return true;
}

void PrefixCache::Clear() {
  ends_.Clear();
  index_.Clear();
}

}  // namespace recurve
