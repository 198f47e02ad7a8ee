#include "engine/tokenizer/pre_tokenizer.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

using Pieces = std::vector<absl::string_view>;

// Each piece becomes at least one piece of the next pattern, so skipping pieces
// after `max_pieces` still leaves more than `max_pieces`.
absl::StatusOr<Pieces> SplitAll(const std::vector<SplitPattern>& patterns,
                                absl::string_view text, size_t max_pieces) {
  Pieces pieces = {text};
  for (const SplitPattern& pattern : patterns) {
    Pieces finer;
    for (absl::string_view piece : pieces) {
      if (finer.size() > max_pieces) break;
      RECURVE_RETURN_IF_ERROR(pattern.Split(piece, &finer, max_pieces));
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace

absl::Status PreTokenizer::ForEachWord(
    absl::string_view text, size_t max_words,
    absl::FunctionRef<absl::Status(absl::string_view)> take) const {
  if (text.empty()) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const Pieces pieces,
                           SplitAll(before_, text, max_words));
  for (absl::string_view piece : pieces) {
    std::string prefixed;
    if (add_prefix_space_ && piece[0] != ' ') {
      prefixed = absl::StrCat(" ", piece);
      piece = prefixed;
    }
    RECURVE_ASSIGN_OR_RETURN(const Pieces words,
                             SplitAll(after_, piece, max_words));
    for (absl::string_view word : words) RECURVE_RETURN_IF_ERROR(take(word));
  }
  return absl::OkStatus();
}

}  // namespace recurve
