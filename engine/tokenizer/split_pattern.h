#ifndef RECURVE_ENGINE_TOKENIZER_SPLIT_PATTERN_H_
#define RECURVE_ENGINE_TOKENIZER_SPLIT_PATTERN_H_

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// The pattern with which GPT-2 cuts a text into words.
extern const absl::string_view kGpt2Pattern;

// Cuts a text where a regular expression matches.
//
// The syntax is that of TranslatePattern(); patterns that may match nothing are
// refused. Matching is PCRE2's, over classes of characters.
//
// Thread safety: immutable, so any thread may call.
class SplitPattern {
 public:
  // InvalidArgument says what is wrong with the pattern: "has '^' at byte 3".
  static absl::StatusOr<SplitPattern> Make(absl::string_view pattern);

  // Appends the matches, in order, and the text between them, none of it empty.
  // Once `pieces` has more than `max_pieces`, the rest of the text is left out.
  // InvalidArgument when PCRE2 gives up, as it does on patterns that take
  // exponential time, and on more than a million turns of a repeated group.
  absl::Status Split(
      absl::string_view text, std::vector<absl::string_view>* pieces,
      size_t max_pieces = std::numeric_limits<size_t>::max()) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };
  explicit SplitPattern(void* code) : code_(code) {}

  std::unique_ptr<void, FreeCode> code_;  // pcre2_code
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SPLIT_PATTERN_H_
