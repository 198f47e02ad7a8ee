#include "engine/serving/prefix_index.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

int64_t CommonLength(absl::Span<const PrefixToken> a,
                     absl::Span<const PrefixToken> b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return ends.first - a.begin();
}

}  // namespace

struct PrefixIndex::Node {
  // Children are ordered by what their subtrees hold, snapshots first, so that
  // a snapshot below a node is found without a search.
  struct Key {
    Held best;
    PrefixToken first;

    bool operator==(const Key&) const = default;
    bool operator<(const Key& other) const {
      return std::tie(best, first) < std::tie(other.best, other.first);
    }
  };

  int64_t edge_size() const { return static_cast<int64_t>(edge.size()); }
  Key key() const { return {best, edge.front()}; }
  Held Best() const {
    return children.empty() ? held
                            : std::min(held, children.begin()->first.best);
  }
  Node* Child(PrefixToken first) const {
    for (const Held best : {Held::kSnapshot, Held::kTombstone, Held::kNote}) {
      const auto found = children.find({best, first});
      if (found != children.end()) return found->second.get();
    }
    return nullptr;
  }

  Tree* tree = nullptr;
  Node* parent = nullptr;         // null: the root
  std::vector<PrefixToken> edge;  // empty: the root
  int64_t depth = 0;              // tokens from the root to the end of the edge
  std::map<Key, std::unique_ptr<Node>> children;

  Held held = Held::kNothing;  // at this place
  Held best = Held::kNothing;  // in this subtree
  uint64_t used = 0;           // the time of the last use, unless kNothing
  Payload payload;             // null: no snapshot
  uint64_t id = 0;             // 0: no snapshot
  bool pinned = false;         // a snapshot
};

struct PrefixIndex::Tree {
  const PrefixDomain* domain;  // the key in trees_
  Node root;
  int64_t snapshots = 0;
};

PrefixIndex::PrefixIndex(int64_t max_noted_tokens)
    : max_noted_tokens_(max_noted_tokens) {}

PrefixIndex::~PrefixIndex() { Clear(); }

uint64_t PrefixIndex::Insert(const PrefixDomain& domain,
                             absl::Span<const PrefixToken> tokens,
                             Payload payload) {
  RECURVE_CHECK(!tokens.empty() && payload != nullptr);
  Node* const node = NodeAt(domain, tokens);
  EmptyPlace(node);
  node->held = Held::kSnapshot;
  node->payload = std::move(payload);
  node->id = ++last_id_;
  node->used = ++clock_;
  snapshots_.emplace(node->id, node);
  evictable_.emplace(node->used, node);
  ++node->tree->snapshots;
  UpdateBest(node);
  return node->id;
}

PrefixMatch PrefixIndex::Find(const PrefixDomain& domain,
                              absl::Span<const PrefixToken> tokens,
                              int64_t max_length) {
  PrefixMatch match;
  Node* found = nullptr;
  for (const auto& [node, shared] : Walk(domain, tokens)) {
    match.common = shared;
    if (shared < node->depth || node->depth > max_length) continue;
    if (node->held == Held::kSnapshot) {
      found = node;
      match.length = node->depth;
      match.evicted = false;
    } else if (node->held == Held::kTombstone) {
      match.evicted = true;
    }
  }
  if (found == nullptr) return match;
  Use(found);
  match.payload = found->payload;
  match.id = found->id;
  return match;
}

PrefixMatch PrefixIndex::FindCovering(const PrefixDomain& domain,
                                      absl::Span<const PrefixToken> tokens,
                                      int64_t max_length) {
  PrefixMatch match;
  Node* found = nullptr;
  for (const auto& [node, shared] : Walk(domain, tokens)) {
    match.common = shared;
    // All places below share `shared` tokens. They are better than those found
    // before, unless max_length was reached there.
    if (node->parent->depth >= max_length) continue;
    if (node->best == Held::kSnapshot) {
      found = node;
      match.length = std::min(shared, max_length);
    } else if (node->best == Held::kTombstone) {
      match.evicted = true;
    }
  }
  if (found == nullptr) return match;
  while (found->held != Held::kSnapshot) {
    found = found->children.begin()->second.get();
  }
  Use(found);
  match.payload = found->payload;
  match.id = found->id;
  return match;
}

void PrefixIndex::Note(const PrefixDomain& domain,
                       absl::Span<const PrefixToken> tokens) {
  if (tokens.empty() || !MayNote(static_cast<int64_t>(tokens.size()))) return;
  Node* const node = NodeAt(domain, tokens);
  const Held held = std::min(node->held, Held::kNote);
  if (held == Held::kSnapshot) return;
  EmptyPlace(node);
  PutNoted(node, held);
  UpdateBest(node);
  ForgetNoted();
}

std::optional<PrefixIndex::Payload> PrefixIndex::EvictOldest() {
  if (evictable_.empty()) return std::nullopt;
  Node* const node = evictable_.begin()->second;
  Payload payload = std::move(node->payload);
  EmptyPlace(node);
  if (MayNote(node->depth)) PutNoted(node, Held::kTombstone);
  Settle(node);
  ForgetNoted();
  return payload;
}

bool PrefixIndex::Pin(uint64_t id, bool pinned) {
  const auto found = snapshots_.find(id);
  if (found == snapshots_.end()) return false;
  Node* const node = found->second;
  node->pinned = pinned;
  if (pinned) {
    evictable_.erase(node->used);
  } else {
    evictable_.emplace(node->used, node);
  }
  return true;
}

bool PrefixIndex::Erase(uint64_t id) {
  const auto found = snapshots_.find(id);
  if (found == snapshots_.end()) return false;
  Node* const node = found->second;
  EmptyPlace(node);
  Settle(node);
  ForgetNoted();  // those on its path may now lead to no snapshot
  return true;
}

void PrefixIndex::Clear() {
  // Without recursion: a path may have a node for each of its tokens.
  std::vector<std::unique_ptr<Node>> nodes;
  const auto take_children = [&nodes](Node* node) {
    for (auto& [key, child] : node->children) nodes.push_back(std::move(child));
    node->children.clear();
  };
  for (auto& [domain, tree] : trees_) take_children(&tree->root);
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    take_children(node.get());
  }
  trees_.clear();
  snapshots_.clear();
  evictable_.clear();
  noted_.clear();
  tokens_ = 0;
  lone_tokens_ = 0;
}

int64_t PrefixIndex::SnapshotsIn(const PrefixDomain& domain) const {
  const auto found = trees_.find(domain);
  return found == trees_.end() ? 0 : found->second->snapshots;
}

std::vector<PrefixIndex::Step> PrefixIndex::Walk(
    const PrefixDomain& domain, absl::Span<const PrefixToken> tokens) const {
  std::vector<Step> steps;
  const auto found = trees_.find(domain);
  if (found == trees_.end()) return steps;
  const Node* node = &found->second->root;
  while (!tokens.empty()) {
    Node* const child = node->Child(tokens.front());
    if (child == nullptr) break;
    const int64_t shared = CommonLength(child->edge, tokens);
    steps.push_back({child, node->depth + shared});
    if (shared < child->edge_size()) break;
    tokens.remove_prefix(shared);
    node = child;
  }
  return steps;
}

PrefixIndex::Node* PrefixIndex::NodeAt(const PrefixDomain& domain,
                                       absl::Span<const PrefixToken> tokens) {
  const auto [entry, added] = trees_.try_emplace(domain);
  if (added) {
    entry->second = std::make_unique<Tree>();
    entry->second->domain = &entry->first;
    entry->second->root.tree = entry->second.get();
  }
  Node* node = &entry->second->root;
  while (!tokens.empty()) {
    Node* const child = node->Child(tokens.front());
    if (child == nullptr) return AddLeaf(node, tokens);
    const int64_t shared = CommonLength(child->edge, tokens);
    node = shared < child->edge_size() ? Split(child, shared) : child;
    tokens.remove_prefix(shared);
  }
  return node;
}

PrefixIndex::Node* PrefixIndex::AddLeaf(Node* parent,
                                        absl::Span<const PrefixToken> edge) {
  auto leaf = std::make_unique<Node>();
  leaf->tree = parent->tree;
  leaf->parent = parent;
  leaf->edge.assign(edge.begin(), edge.end());
  leaf->depth = parent->depth + leaf->edge_size();
  tokens_ += leaf->edge_size();
  lone_tokens_ += leaf->edge_size();
  const Node::Key key = leaf->key();
  return parent->children.emplace(key, std::move(leaf)).first->second.get();
}

PrefixIndex::Node* PrefixIndex::Split(Node* lower, int64_t count) {
  auto upper = std::make_unique<Node>();
  upper->tree = lower->tree;
  upper->parent = lower->parent;
  upper->edge.assign(lower->edge.begin(), lower->edge.begin() + count);
  upper->depth = lower->parent->depth + count;
  upper->best = lower->best;
  Node* const result = upper.get();
  std::unique_ptr<Node>& entry = lower->parent->children[lower->key()];
  std::swap(entry, upper);  // `upper` is now the lower node
  // A new vector, because an erased one keeps its memory.
  lower->edge =
      std::vector<PrefixToken>(lower->edge.begin() + count, lower->edge.end());
  lower->parent = result;
  result->children.emplace(lower->key(), std::move(upper));
  return result;
}

void PrefixIndex::Merge(Node* node) {
  std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  // Both subtrees hold the same, so the key stays.
  node->parent->children[node->key()] = std::move(child);
}

void PrefixIndex::UpdateBest(Node* node) {
  for (; node != nullptr; node = node->parent) {
    const Held best = node->Best();
    if (best == node->best) return;
    if (node->parent != nullptr) {
      if (best == Held::kSnapshot) lone_tokens_ -= node->edge_size();
      if (node->best == Held::kSnapshot) lone_tokens_ += node->edge_size();
      auto entry = node->parent->children.extract(node->key());
      entry.key().best = best;
      node->parent->children.insert(std::move(entry));
    }
    node->best = best;
  }
}

void PrefixIndex::Settle(Node* node) {
  UpdateBest(node);
  Node* const parent = node->parent;
  if (node->held == Held::kNothing && node->children.empty()) {
    tokens_ -= node->edge_size();
    lone_tokens_ -= node->edge_size();
    parent->children.erase(node->key());
    node = parent;
    UpdateBest(node);
  }
  if (node->parent == nullptr) {
    if (node->children.empty()) trees_.erase(trees_.find(*node->tree->domain));
  } else if (node->held == Held::kNothing && node->children.size() == 1) {
    Merge(node);
  }
}

void PrefixIndex::Use(Node* node) {
  if (!node->pinned) evictable_.erase(node->used);
  node->used = ++clock_;
  if (!node->pinned) evictable_.emplace(node->used, node);
}

void PrefixIndex::PutNoted(Node* node, Held held) {
  node->held = held;
  node->used = ++clock_;
  noted_.emplace(node->used, node);
}

void PrefixIndex::EmptyPlace(Node* node) {
  if (node->held == Held::kSnapshot) {
    snapshots_.erase(node->id);
    if (!node->pinned) evictable_.erase(node->used);
    --node->tree->snapshots;
    node->payload = nullptr;
    node->id = 0;
    node->pinned = false;
  } else if (node->held != Held::kNothing) {
    noted_.erase(node->used);
  }
  node->held = Held::kNothing;
}

void PrefixIndex::ForgetNoted() {
  while (noted_tokens() > max_noted_tokens_ && !noted_.empty()) {
    Node* const node = noted_.begin()->second;
    EmptyPlace(node);
    Settle(node);
  }
}

absl::Status PrefixIndex::CheckInvariants() const {
  Found found;
  for (const auto& [domain, tree] : trees_) {
    if (tree->domain != &domain) {
      return absl::InternalError(
          absl::StrCat("a tree of flow ", domain.flow, " has another domain"));
    }
    RECURVE_RETURN_IF_ERROR(CheckTree(*tree, &found));
  }
  const auto evictable = static_cast<int64_t>(evictable_.size());
  const auto noted = static_cast<int64_t>(noted_.size());
  if (found.tokens != tokens_ || found.lone_tokens != lone_tokens_ ||
      found.snapshots != size() || found.noted != noted ||
      found.snapshots - found.pinned != evictable) {
    return absl::InternalError(absl::StrCat(
        "counted ", tokens_, " tokens, ", lone_tokens_, " of them lone, ",
        size(), " snapshots, ", evictable, " of them evictable, and ", noted,
        " noted places; the trees have ", found.tokens, ", ", found.lone_tokens,
        ", ", found.snapshots, ", ", found.snapshots - found.pinned, " and ",
        found.noted));
  }
  if (noted_tokens() > max_noted_tokens_) {
    return absl::InternalError(absl::StrCat(
        noted_tokens(), " noted tokens; allowed: ", max_noted_tokens_));
  }
  return absl::OkStatus();
}

absl::Status PrefixIndex::CheckTree(const Tree& tree, Found* found) const {
  const int64_t before = found->snapshots;
  if (tree.root.children.empty() || tree.root.held != Held::kNothing) {
    return absl::InternalError(absl::StrCat(
        "the tree of flow ", tree.domain->flow, " has ",
        tree.root.children.size(), " children, and its root holds kind ",
        static_cast<int>(tree.root.held)));
  }
  // Without recursion, as in Clear.
  std::vector<const Node*> nodes = {&tree.root};
  while (!nodes.empty()) {
    const Node* const node = nodes.back();
    nodes.pop_back();
    RECURVE_RETURN_IF_ERROR(CheckNode(*node, found));
    for (const auto& [key, child] : node->children) {
      if (child->parent != node || child->tree != &tree ||
          child->edge.empty() || key != child->key()) {
        return absl::InternalError(
            absl::StrCat("a child of the node at ", node->depth,
                         " tokens has another parent, tree or key"));
      }
      nodes.push_back(child.get());
    }
  }
  if (found->snapshots - before != tree.snapshots) {
    return absl::InternalError(absl::StrCat(
        "flow ", tree.domain->flow, " counts ", tree.snapshots,
        " snapshots and has ", found->snapshots - before, " in its tree"));
  }
  return absl::OkStatus();
}

absl::Status PrefixIndex::CheckNode(const Node& node, Found* found) const {
  const bool root = node.parent == nullptr;
  const int64_t above = root ? 0 : node.parent->depth;
  if (node.depth != above + node.edge_size()) {
    return absl::InternalError(
        absl::StrCat("a node at ", node.depth, " tokens has an edge of ",
                     node.edge_size(), " below ", above));
  }
  if (!root && node.held == Held::kNothing && node.children.size() < 2) {
    return absl::InternalError(absl::StrCat("the empty place at ", node.depth,
                                            " tokens has ",
                                            node.children.size(), " children"));
  }
  if (node.best != node.Best()) {
    return absl::InternalError(absl::StrCat(
        "the subtree at ", node.depth, " tokens holds kind ",
        static_cast<int>(node.Best()), ", not ", static_cast<int>(node.best)));
  }
  std::set<PrefixToken> firsts;
  for (const auto& [key, child] : node.children) firsts.insert(key.first);
  if (firsts.size() != node.children.size()) {
    return absl::InternalError(
        absl::StrCat(node.children.size(), " children at ", node.depth,
                     " tokens start with ", firsts.size(), " tokens"));
  }
  found->tokens += node.edge_size();
  if (node.best != Held::kSnapshot) found->lone_tokens += node.edge_size();
  return CheckPlace(node, found);
}

absl::Status PrefixIndex::CheckPlace(const Node& node, Found* found) const {
  const bool snapshot = node.held == Held::kSnapshot;
  if ((node.payload != nullptr) != snapshot || (node.id != 0) != snapshot ||
      (node.pinned && !snapshot)) {
    return absl::InternalError(
        absl::StrCat("the place at ", node.depth, " tokens holds kind ",
                     static_cast<int>(node.held), " with id ", node.id));
  }
  if (node.held == Held::kNothing) return absl::OkStatus();
  const auto listed = [&](const auto& nodes, uint64_t key) {
    const auto entry = nodes.find(key);
    return entry != nodes.end() && entry->second == &node;
  };
  if (listed(evictable_, node.used) != (snapshot && !node.pinned) ||
      listed(noted_, node.used) == snapshot ||
      listed(snapshots_, node.id) != snapshot) {
    return absl::InternalError(absl::StrCat(
        "the place at ", node.depth, " tokens, of kind ",
        static_cast<int>(node.held), ", id ", node.id, " and time ", node.used,
        ", is not in the lists that it belongs to"));
  }
  ++(snapshot ? found->snapshots : found->noted);
  if (node.pinned) ++found->pinned;
  return absl::OkStatus();
}

}  // namespace recurve
