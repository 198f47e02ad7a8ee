#ifndef RECURVE_ENGINE_SERVING_PREFIX_INDEX_H_
#define RECURVE_ENGINE_SERVING_PREFIX_INDEX_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/program/step.h"

namespace recurve {

// A token as prompts are compared: the state after two equal prefixes has equal
// bits only if the kinds, which decide the arithmetic, are equal, too.
struct PrefixToken {
  int32_t id = 0;
  TokenKind kind = TokenKind::kPrompt;

  bool operator==(const PrefixToken&) const = default;
  bool operator<(const PrefixToken& other) const {
    return std::tie(id, kind) < std::tie(other.id, other.kind);
  }
};

// Prompts share state only within a domain.
struct PrefixDomain {
  uint32_t flow = 0;  // the tenant
  // Divides a tenant's prompts. The caller limits its length: its bytes do not
  // count towards the limits of the index.
  std::string cache_key;

  bool operator==(const PrefixDomain&) const = default;
  bool operator<(const PrefixDomain& other) const {
    return std::tie(flow, cache_key) < std::tie(other.flow, other.cache_key);
  }
};

struct PrefixMatch {
  std::shared_ptr<const void> payload;  // of the snapshot; null: none found
  uint64_t id = 0;                      // of the snapshot; 0: none found
  // First tokens of the prompt whose state the snapshot gives; 0: none found.
  int64_t length = 0;
  // First tokens that the prompt shares with any known path: of a snapshot, of
  // an evicted one or of a noted prompt.
  int64_t common = 0;
  // Whether an evicted snapshot would have given more than `length`.
  bool evicted = false;
};

// Finds the snapshot of a sequence's state that covers most of a new prompt.
//
// A radix tree for each domain. A node holds a run of tokens, its edge; the
// place at the end of it may hold a snapshot, a tombstone (a snapshot was
// evicted there) or a note (a prompt that ended there was seen). A snapshot's
// payload is opaque: the index keeps it and never looks into it.
//
// Invariants: the tree is compressed: a node whose place is empty has at least
// two children, or is a root. A domain without places has no tree. No place
// holds two things: a snapshot replaces a tombstone or a note, a note neither.
// noted_tokens() <= max_noted_tokens.
//
// A domain's answers never show the contents of another. But the order of
// eviction and max_noted_tokens span all domains: one that is busy makes others
// lose snapshots and notes.
//
// Costs: a call with tokens takes O(tokens), and O(log) of the children of each
// node on the path, of the domains and of all places. An eviction needs no
// search: O(log) of all places. Both may copy an edge: one is divided, or two
// are joined.
//
// Thread safety: none; the engine's step thread owns the index.
class PrefixIndex {
 public:
  using Payload = std::shared_ptr<const void>;

  // Each note and tombstone counts as this many tokens in addition to those of
  // its path: about the memory of two nodes.
  static constexpr int64_t kPlaceTokens = 32;

  // `max_noted_tokens`: the limit of noted_tokens(), at least 0. Above it the
  // oldest notes and tombstones are forgotten. One that would exceed it alone
  // is not made.
  explicit PrefixIndex(int64_t max_noted_tokens);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Adds a snapshot of the state after `tokens`, as the most recently used one
  // and not pinned. Replaces a snapshot at the same place, even if that is
  // pinned. Returns its id, which is never used again. REQUIRES: `tokens` is
  // not empty, and `payload` not null.
  uint64_t Insert(const PrefixDomain& domain,
                  absl::Span<const PrefixToken> tokens, Payload payload);

  // For models with recurrent state, which exists only where it was saved: the
  // longest snapshot whose tokens are the first of `tokens`, at most
  // `max_length`. Makes it the most recently used one.
  PrefixMatch Find(const PrefixDomain& domain,
                   absl::Span<const PrefixToken> tokens, int64_t max_length);

  // For models without recurrent state, where the first part of a snapshot is
  // one, too: a snapshot that shares the most first tokens with `tokens`; of
  // these at most `max_length` count. Its own tokens may differ from `tokens`
  // after that, or be more. Of several the same one is found as long as none is
  // added or removed. Makes it the most recently used one. Also takes time for
  // the nodes between `common` and the snapshot.
  PrefixMatch FindCovering(const PrefixDomain& domain,
                           absl::Span<const PrefixToken> tokens,
                           int64_t max_length);

  // Remembers that this prompt was seen, so that PrefixMatch::common tells
  // where a later one parts from it. If it is known already, it is the newest
  // again.
  void Note(const PrefixDomain& domain, absl::Span<const PrefixToken> tokens);

  // Removes the least recently used snapshot that is not pinned, leaves a
  // tombstone, and returns the payload; nullopt if there is no such snapshot.
  std::optional<Payload> EvictOldest();

  // A pinned snapshot is not evicted. Neither pinning nor unpinning is a use.
  // Pins do not nest. False, without effect, if the snapshot is gone.
  bool Pin(uint64_t id, bool pinned);
  // Removes a snapshot, pinned or not, without a tombstone. False if it is
  // gone.
  bool Erase(uint64_t id);
  // Removes everything, without tombstones.
  void Clear();

  // Snapshots, including pinned ones.
  int64_t size() const { return static_cast<int64_t>(snapshots_.size()); }
  int64_t SnapshotsIn(const PrefixDomain& domain) const;
  // Tokens of all edges.
  int64_t tokens() const { return tokens_; }
  // Tokens of the edges that lead to no snapshot, and kPlaceTokens for each
  // note and tombstone.
  int64_t noted_tokens() const {
    return lone_tokens_ + kPlaceTokens * static_cast<int64_t>(noted_.size());
  }

  // Internal unless the invariants hold and counts, orders and trees agree.
  // Scans everything: for tests.
  absl::Status CheckInvariants() const;

 private:
  // What a place holds; for a subtree, the first of these that one of its
  // places holds.
  enum class Held : uint8_t { kSnapshot, kTombstone, kNote, kNothing };
  struct Node;
  struct Tree;
  struct Found {  // by CheckInvariants
    int64_t tokens = 0;
    int64_t lone_tokens = 0;
    int64_t snapshots = 0;
    int64_t pinned = 0;
    int64_t noted = 0;
  };
  // A node that a walk enters, and the first tokens shared with its path.
  struct Step {
    Node* node;
    int64_t shared;
  };

  std::vector<Step> Walk(const PrefixDomain& domain,
                         absl::Span<const PrefixToken> tokens) const;
  // The node that ends after `tokens`, made if there is none. REQUIRES: the
  // caller puts something there.
  Node* NodeAt(const PrefixDomain& domain,
               absl::Span<const PrefixToken> tokens);
  Node* AddLeaf(Node* parent, absl::Span<const PrefixToken> edge);
  // Divides an edge after `count` of its tokens; returns the upper part.
  Node* Split(Node* lower, int64_t count);
  // Joins a node with its only child. REQUIRES: its place is empty.
  void Merge(Node* node);
  // Makes `best` of a node and those above agree with its place and children.
  void UpdateBest(Node* node);
  // Removes what an emptied place no longer needs: its node, the one above, the
  // tree.
  void Settle(Node* node);

  void Use(Node* node);  // a snapshot
  void PutNoted(Node* node, Held held);
  void EmptyPlace(Node* node);
  bool MayNote(int64_t length) const {
    return length + kPlaceTokens <= max_noted_tokens_;
  }
  // Forgets the oldest notes and tombstones above the limit.
  void ForgetNoted();

  absl::Status CheckTree(const Tree& tree, Found* found) const;
  absl::Status CheckNode(const Node& node, Found* found) const;
  absl::Status CheckPlace(const Node& node, Found* found) const;

  const int64_t max_noted_tokens_;
  std::map<PrefixDomain, std::unique_ptr<Tree>> trees_;
  std::unordered_map<uint64_t, Node*> snapshots_;  // by id
  uint64_t last_id_ = 0;
  // Nodes by the time of their last use, the oldest first: of snapshots that
  // are not pinned; of notes and tombstones.
  std::map<uint64_t, Node*> evictable_;
  std::map<uint64_t, Node*> noted_;
  uint64_t clock_ = 0;  // uses until now
  int64_t tokens_ = 0;
  int64_t lone_tokens_ = 0;  // of edges that lead to no snapshot
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PREFIX_INDEX_H_
