#ifndef RECURVE_ENGINE_SERVING_PREFIX_CACHE_H_
#define RECURVE_ENGINE_SERVING_PREFIX_CACHE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/serving/cache_use.h"
#include "engine/serving/prefix_index.h"
#include "engine/serving/prompt_ends.h"
#include "kv_cache/cache_manager.h"

namespace recurve {

// The snapshots of prompts that later prompts may begin with, in host memory
// that they share with preempted sequences (CacheManager).
//
// Exactness: unless Options say otherwise, a snapshot is used for tokens of the
// same ids and kinds only (PrefixToken). Their arithmetic is the same, so that
// a prompt that continues a snapshot has the bits of one that is computed as a
// whole. The price: a prompt that grows from short to long (kShortPromptTokens)
// finds nothing of its short form, and computes at most that many tokens again.
//
// The end of a whole prompt (PromptEnds) costs what is not shared with another
// snapshot. Ends and other snapshots make room in turn.
//
// Thread safety: none; the engine's step thread owns it.
class PrefixCache {
 public:
  struct Options {
    bool enabled = false;
    // Compares ids only: Found::kinds says how the tokens were computed.
    bool any_kind = false;
    // ModelInfo::kinds_differ. If not, kinds are not compared either.
    bool kinds_differ = true;
    bool has_state = false;  // the model has recurrent layers
    int64_t chunk_multiple = 1;
    // Blocks that snapshots leave free, for preempted sequences.
    int64_t reserve = 0;
  };
  // `cache` outlives the object.
  PrefixCache(const Options& options, CacheManager* cache);

  bool enabled() const { return options_.enabled; }
  // Whether what is found may have been computed otherwise.
  bool approximate() const {
    return options_.any_kind && options_.kinds_differ;
  }
  // Whether generated tokens are found as part of a prompt.
  bool finds_generated() const {
    return options_.enabled && (options_.any_kind || !options_.kinds_differ);
  }
  // Changes whenever a later Find may find more.
  uint64_t version() const { return version_; }

  struct Found {
    SnapshotPrefix prefix;  // the first tokens of the prompt, or nothing
    // With approximate(): of these, at least. Valid until the next call.
    absl::Span<const TokenKind> kinds;
    CacheUse use;
    std::vector<int64_t> places;  // where snapshots are to be taken
  };
  // Looks for the first of `tokens`, of which one at least stays to be
  // computed. `named`: SequenceOptions::snapshot_at.
  Found Find(const PrefixDomain& domain, absl::Span<const PrefixToken> tokens,
             absl::Span<const int64_t> named);
  // Remembers that this prompt was seen. After its first Find: it would find
  // itself.
  void Note(const PrefixDomain& domain, absl::Span<const PrefixToken> tokens);

  // Takes a snapshot of the lease if the cache is enabled and there is room, or
  // room can be made; null if not. Shares the pages of `base`, which is of the
  // first of the same tokens, or empty. `preempted`: blocks that preempted
  // sequences have. For its caller alone: it is not found.
  absl::StatusOr<SnapshotPtr> Save(const SequenceLease& lease,
                                   const SnapshotPrefix& base,
                                   int64_t preempted);
  // As Save: a snapshot of `tokens` tokens for the caller to fill.
  absl::StatusOr<SnapshotPtr> Blank(int64_t tokens, int64_t preempted);
  // As Save, of a lease that has absorbed `tokens`, to be found.
  absl::StatusOr<SnapshotPtr> Take(const PrefixDomain& domain,
                                   absl::Span<const PrefixToken> tokens,
                                   const SequenceLease& lease,
                                   const SnapshotPrefix& base,
                                   int64_t preempted);

  // As Find, for a prompt of which nothing is to be computed; null if there is
  // none. Valid until the next call.
  const PromptEnds::End* FindEnd(const PrefixDomain& domain,
                                 absl::Span<const PrefixToken> tokens);
  // REQUIRES: enabled(); `end` is of `tokens`.
  void PutEnd(const PrefixDomain& domain, std::vector<PrefixToken> tokens,
              PromptEnds::End end) {
    ends_.Put(domain, std::move(tokens), std::move(end));
  }

  // Whether `blocks` blocks are free, or can be made so, in addition to the
  // reserve.
  bool FindRoom(int64_t blocks, int64_t preempted);
  // Removes the oldest snapshots until `blocks` blocks are free, or that does
  // not help: what sequences hold of them stays.
  void MakeRoom(int64_t blocks);
  void Clear();

  int64_t snapshots() const { return index_.size(); }
  uint64_t evictions() const { return evictions_; }

 private:
  // As the index compares them. Valid until the next call.
  absl::Span<const PrefixToken> Comparable(
      absl::Span<const PrefixToken> tokens);
  // REQUIRES: the tokens are comparable, and not none.
  PrefixMatch Match(const PrefixDomain& domain,
                    absl::Span<const PrefixToken> tokens);

  // Removes the oldest end, or other snapshot. False if there is none.
  bool Evict(bool end);

  const Options options_;
  CacheManager* const cache_;
  PrefixIndex index_;
  PromptEnds ends_;
  std::vector<PrefixToken> compared_;
  uint64_t version_ = 0;
  uint64_t evictions_ = 0;
  bool evicts_end_ = false;  // last time
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PREFIX_CACHE_H_
