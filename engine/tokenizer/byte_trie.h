#ifndef RECURVE_ENGINE_TOKENIZER_BYTE_TRIE_H_
#define RECURVE_ENGINE_TOKENIZER_BYTE_TRIE_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Maps strings to values; walked byte by byte. Thread safety: the const methods
// may run concurrently.
class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr int32_t kNone = -1;

  // False, without a change, if the string is present already.
  // REQUIRES: value >= 0.
  bool Add(absl::string_view text, int32_t value);

  // Moves *node to its child; false if it has none.
  bool Walk(uint32_t* node, char byte) const;
  // The value of the string that ends at `node`, or kNone.
  int32_t Value(uint32_t node) const { return values_[node]; }

  // Bytes of the longest stored prefix of `text`, and its value; 0 if there is
  // none.
  size_t LongestPrefix(absl::string_view text, int32_t* value) const;

 private:
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // by node << 8 | byte
  std::vector<int32_t> values_ = {kNone};             // by node
  bool first_bytes_[256] = {};                        // most texts end here
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BYTE_TRIE_H_
