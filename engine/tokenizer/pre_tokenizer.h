#ifndef RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_

#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/split_pattern.h"

namespace recurve {

// Splits a text into words: by each pattern in turn, applied to every piece;
// then, if requested, a space is put before each piece that has none; then by
// the remaining patterns.
//
// Thread safety: immutable, so any thread may call.
class PreTokenizer {
 public:
  PreTokenizer(std::vector<SplitPattern> before, bool add_prefix_space,
               std::vector<SplitPattern> after)
      : before_(std::move(before)),
        add_prefix_space_(add_prefix_space),
        after_(std::move(after)) {}

  // Calls `take` with each word, in order, none of them empty, and stops at the
  // first error. If the text has more than `max_words` words, at least
  // max_words + 1 are taken, and the rest may be skipped.
  absl::Status ForEachWord(
      absl::string_view text, size_t max_words,
      absl::FunctionRef<absl::Status(absl::string_view)> take) const;

 private:
  std::vector<SplitPattern> before_;
  bool add_prefix_space_;
  std::vector<SplitPattern> after_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
