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

// GPT-2's pattern for splitting a text into words.
extern const absl::string_view kGpt2Pattern;

// Splits a text at the matches of a regular expression.
//
// The syntax is that of TranslatePattern(); patterns that can match the empty
// string are refused. Matching is PCRE2's, over character classes.
//
// Thread safety: immutable, so any thread may call.
class SplitPattern {
 public:
  // InvalidArgument describes the error in the pattern: "has '^' at byte 3".
  static absl::StatusOr<SplitPattern> Make(absl::string_view pattern);

  // Appends the matches, in order, and the text between them, unless
  // `matches_only`, none of it empty. Once `pieces` has more than `max_pieces`,
  // the rest of the text is skipped. InvalidArgument if PCRE2 gives up, as it
  // does on patterns that take exponential time, and on more than a million
  // repetitions of a group.
  absl::Status Split(absl::string_view text,
                     std::vector<absl::string_view>* pieces,
                     size_t max_pieces = std::numeric_limits<size_t>::max(),
                     bool matches_only = false) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };
  explicit SplitPattern(void* code) : code_(code) {}

  std::unique_ptr<void, FreeCode> code_;  // pcre2_code
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SPLIT_PATTERN_H_
