#ifndef RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/split_pattern.h"

namespace recurve {

// Splits a text into words: each step is applied to every piece that the one
// before it made.
//
// Thread safety: immutable, so any thread may call.
class PreTokenizer {
 public:
  // Writes `symbol` for each space, and may put one before a piece that begins
  // with none.
  struct Metaspace {
    enum class Prepend {
      kAlways,  // before each piece
      kFirst,   // before the piece with which the text begins
      kNever,
    };
    std::string symbol;  // one character
    Prepend prepend = Prepend::kAlways;
    bool split = true;  // before each symbol
  };

  // One of these: with a pattern or a Metaspace, that; otherwise a space is put
  // before each piece that begins with none.
  struct Step {
    std::optional<SplitPattern> pattern;  // splits at its matches
    bool matches_only = false;            // drops the text between them
    std::optional<Metaspace> metaspace;
  };

  // Without steps, a text is one word.
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  // Whether words may be fewer bytes than their text.
  bool drops_text() const;

  // Calls `take` with each word, in order, none of them empty, and stops at the
  // first error. `is_first`: the text is the beginning of the whole text. If
  // the text has more than `max_words` words, at least max_words + 1 are taken,
  // and the rest may be skipped.
  absl::Status ForEachWord(
      absl::string_view text, bool is_first, size_t max_words,
      absl::FunctionRef<absl::Status(absl::string_view)> take) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
