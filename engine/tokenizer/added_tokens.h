#ifndef RECURVE_ENGINE_TOKENIZER_ADDED_TOKENS_H_
#define RECURVE_ENGINE_TOKENIZER_ADDED_TOKENS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/tokenizer/byte_trie.h"

namespace recurve {

// A token that is found in the text before any word is cut.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no \w touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = true;    // is looked for in the normalised text
  bool special = false;      // has no text of its own
};

// Finds added tokens. At each place the longest one counts; search goes on
// behind it, also when single_word then refuses it, as in the reference.
//
// Thread safety: Find() may run concurrently.
class AddedTokens {
 public:
  // One of several tokens with the same content: the first counts.
  void Add(const AddedToken& token);

  struct Span {
    absl::string_view text;
    int32_t id = -1;  // -1: no added token
  };
  // The whole text in order, cut; empty spans between tokens are left out. Once
  // more than `max_tokens` are found, the rest of the text is left out, too.
  // Time: the size of the text times the length of the longest token.
  std::vector<Span> Find(
      absl::string_view text,
      size_t max_tokens = std::numeric_limits<size_t>::max()) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // of indices of tokens_
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_ADDED_TOKENS_H_
