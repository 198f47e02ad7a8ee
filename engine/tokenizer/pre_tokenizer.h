#ifndef RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_PRE_TOKENIZER_H_

#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/split_pattern.h"

namespace recurve {

// Cuts a text into the words that are encoded one by one: by each pattern in
// turn, every piece anew; then, where asked, a space is put before each piece
// that has none; then by the patterns behind that.
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
  // first error. Of a text of more than `max_words` words at least so many and
  // one more are taken, and the rest may be left out.
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
