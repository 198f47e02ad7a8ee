#include "engine/tokenizer/added_tokens.h"

#include <algorithm>

#include "engine/tokenizer/unicode_class.h"

namespace recurve {

void AddedTokens::Add(const AddedToken& token) {
  if (token.content.empty()) return;
  if (trie_.Add(token.content, static_cast<int32_t>(tokens_.size()))) {
    tokens_.push_back(token);
  }
}

std::vector<AddedTokens::Span> AddedTokens::Find(absl::string_view text,
                                                 size_t max_tokens) const {
  std::vector<Span> spans;
  size_t count = 0;  // added tokens among them
  size_t done = 0;   // bytes already in spans
  for (size_t at = 0; at < text.size();) {
    int32_t found = -1;
    const size_t size = trie_.LongestPrefix(text.substr(at), &found);
    if (size == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = at;
    size_t end = at + size;
    at = end;
    if (token.single_word && (IsWord(ClassOfLast(text.substr(0, begin))) ||
                              IsWord(ClassOfFirst(text.substr(end))))) {
      continue;
    }
    if (token.lstrip) {
      // Text taken by an earlier token is excluded.
      const absl::string_view before = text.substr(0, begin);
      begin = std::max(done, begin - TrailingSpace(before));
    }
    if (token.rstrip) end += LeadingSpace(text.substr(end));
    // An earlier token has taken it as white space: it has no text left, and
    // the reference drops it.
    if (begin >= end) continue;
    if (begin > done) spans.push_back({text.substr(done, begin - done)});
    spans.push_back({text.substr(begin, end - begin), token.id});
    done = end;
    if (++count > max_tokens) return spans;
  }
  if (done < text.size()) spans.push_back({text.substr(done)});
  return spans;
}

}  // namespace recurve
