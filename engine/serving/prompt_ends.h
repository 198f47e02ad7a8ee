#ifndef RECURVE_ENGINE_SERVING_PROMPT_ENDS_H_
#define RECURVE_ENGINE_SERVING_PROMPT_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "engine/serving/prefix_index.h"
#include "engine/serving/sequence_state.h"
#include "kv_cache/snapshot.h"

namespace recurve {

// At least this many tokens have their logits kept after a command that only
// appends: a draw is likely.
inline constexpr int64_t kMinAppendedEndTokens = 128;

// What is known of whole prompts: the state after the last token, and the
// logits that the next token is drawn from. An equal prompt computes nothing.
//
// The radix tree (PrefixIndex) cannot have these: such a state is in the middle
// of a chunk, so a longer prompt with the same first tokens has other bits
// there.
//
// Thread safety: none; the engine's step thread owns it.
class PromptEnds {
 public:
  struct End {
    SnapshotPtr snapshot;  // of all tokens
    LogitsRow row;
  };

  // `max_bytes`: of tokens and logits. The least recently used go first.
  explicit PromptEnds(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Null if this prompt has no end. Makes it the most recently used one. Valid
  // until the next call.
  const End* Find(const PrefixDomain& domain,
                  absl::Span<const PrefixToken> tokens);
  // Replaces that of an equal prompt. REQUIRES: neither is null.
  void Put(const PrefixDomain& domain, std::vector<PrefixToken> tokens,
           End end);
  // False if there is none.
  bool EvictOldest();
  void Clear();

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    size_t hash;
    PrefixDomain domain;
    std::vector<PrefixToken> tokens;
    End end;

    int64_t bytes() const {
      return static_cast<int64_t>(tokens.size() * sizeof(PrefixToken) +
                                  end.row->size() * sizeof(float));
    }
  };
  using Entries = std::list<Entry>;

  static size_t HashOf(const PrefixDomain& domain,
                       absl::Span<const PrefixToken> tokens);
  // end() if there is none.
  Entries::iterator Lookup(size_t hash, const PrefixDomain& domain,
                           absl::Span<const PrefixToken> tokens);
  void Erase(Entries::iterator entry);

  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  Entries entries_;  // the least recently used first
  std::unordered_multimap<size_t, Entries::iterator> by_hash_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PROMPT_ENDS_H_
