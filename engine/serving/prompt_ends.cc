#include "engine/serving/prompt_ends.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace recurve {

size_t PromptEnds::HashOf(const PrefixDomain& domain,
                          absl::Span<const PrefixToken> tokens) {
  size_t hash = absl::HashOf(domain.flow, absl::string_view(domain.cache_key),
                             tokens.size());
  for (const PrefixToken& token : tokens) {
    hash = absl::HashOf(hash, token.id, static_cast<int>(token.kind));
  }
  return hash;
}

PromptEnds::Entries::iterator PromptEnds::Lookup(
    size_t hash, const PrefixDomain& domain,
    absl::Span<const PrefixToken> tokens) {
  auto [it, end] = by_hash_.equal_range(hash);
  for (; it != end; ++it) {
    const Entry& entry = *it->second;
    if (entry.domain == domain && absl::MakeConstSpan(entry.tokens) == tokens) {
      return it->second;
    }
  }
  return entries_.end();
}

const PromptEnds::End* PromptEnds::Find(const PrefixDomain& domain,
                                        absl::Span<const PrefixToken> tokens) {
  if (entries_.empty()) return nullptr;
  const auto entry = Lookup(HashOf(domain, tokens), domain, tokens);
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.end(), entries_, entry);
  return &entry->end;
}

void PromptEnds::Put(const PrefixDomain& domain,
                     std::vector<PrefixToken> tokens, End end) {
  RECURVE_CHECK(end.snapshot != nullptr && end.row != nullptr);
  const size_t hash = HashOf(domain, tokens);
  if (const auto old = Lookup(hash, domain, tokens); old != entries_.end()) {
    Erase(old);
  }
  entries_.push_back({hash, domain, std::move(tokens), std::move(end)});
  by_hash_.emplace(hash, std::prev(entries_.end()));
  bytes_ += entries_.back().bytes();
  while (bytes_ > max_bytes_) EvictOldest();
}

bool PromptEnds::EvictOldest() {
  if (entries_.empty()) return false;
  Erase(entries_.begin());
  return true;
}

void PromptEnds::Erase(Entries::iterator entry) {
  auto [it, end] = by_hash_.equal_range(entry->hash);
  while (it != end && it->second != entry) ++it;
  RECURVE_CHECK(it != end);
  by_hash_.erase(it);
  bytes_ -= entry->bytes();
  entries_.erase(entry);
}

void PromptEnds::Clear() {
  while (EvictOldest()) {
  }
}

}  // namespace recurve
