#include "engine/tokenizer/byte_trie.h"

namespace recurve {
namespace {

uint64_t Key(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

bool ByteTrie::Add(absl::string_view text, int32_t value) {
  uint32_t node = kRoot;
  for (char c : text) {
    const auto [child, is_new] = children_.try_emplace(
        Key(node, c), static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(kNone);
    node = child->second;
  }
  if (values_[node] != kNone) return false;
  values_[node] = value;
  if (!text.empty()) first_bytes_[static_cast<uint8_t>(text[0])] = true;
  return true;
}

bool ByteTrie::Walk(uint32_t* node, char byte) const {
  if (*node == kRoot && !first_bytes_[static_cast<uint8_t>(byte)]) return false;
  const auto child = children_.find(Key(*node, byte));
  if (child == children_.end()) return false;
  *node = child->second;
  return true;
}

size_t ByteTrie::LongestPrefix(absl::string_view text, int32_t* value) const {
  size_t longest = 0;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size() && Walk(&node, text[i]); ++i) {
    if (Value(node) == kNone) continue;
    longest = i + 1;
    *value = Value(node);
  }
  return longest;
}

}  // namespace recurve
