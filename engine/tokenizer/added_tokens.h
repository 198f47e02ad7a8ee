#ifndef RECURVE_ENGINE_TOKENIZER_ADDED_TOKENS_H_
#define RECURVE_ENGINE_TOKENIZER_ADDED_TOKENS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/tokenizer/byte_trie.h"

namespace recurve {

// A token that is found in the text before words are split.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only without \w next to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = true;    // is searched for in the normalised text
  bool special = false;      // has no text of its own
};

// Finds added tokens. At each position the longest match counts; the search
// continues after it, even if single_word then rejects it, as in the reference.
//
// Thread safety: Find() may run concurrently.
class AddedTokens {
 public:
  // The first of several tokens with the same content counts.
  void Add(const AddedToken& token);

  struct Span {
    absl::string_view text;
    int32_t id = -1;  // -1: no added token
  };
  // The whole text in order, split; empty spans between tokens are omitted.
  // Once more than `max_tokens` are found, the rest of the text is omitted,
  // too. Time: the size of the text times the length of the longest token.
  std::vector<Span> Find(
      absl::string_view text,
      size_t max_tokens = std::numeric_limits<size_t>::max()) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // values are indices into tokens_
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_ADDED_TOKENS_H_
