#include "engine/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

using Pieces = std::vector<absl::string_view>;

// Collects the pieces of a step that writes a text of its own.
class Rewriter {
 public:
  explicit Rewriter(size_t bytes) { text_.reserve(bytes); }

  void Append(absl::string_view text) {
    text_.append(text.data(), text.size());
  }
  // Ends a piece, which may be empty: then it is none.
  void EndPiece() {
    if (text_.size() > (ends_.empty() ? 0 : ends_.back())) {
      ends_.push_back(text_.size());
    }
  }
  size_t num_pieces() const { return ends_.size(); }

  // The pieces refer to *text.
  Pieces Finish(std::string* text) {
    *text = std::move(text_);
    Pieces pieces;
    pieces.reserve(ends_.size());
    size_t begin = 0;
    for (size_t end : ends_) {
      pieces.push_back(absl::string_view(*text).substr(begin, end - begin));
      begin = end;
    }
    return pieces;
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;
};

size_t TotalBytes(const Pieces& pieces) {
  size_t bytes = 0;
  for (absl::string_view piece : pieces) bytes += piece.size();
  return bytes;
}

// Each piece becomes at least one piece of the next step, so skipping pieces
// after `max_pieces` still leaves more than `max_pieces`; not so if a step
// drops text.
absl::StatusOr<Pieces> SplitAll(const PreTokenizer::Step& step,
                                const Pieces& pieces, size_t max_pieces) {
  Pieces finer;
  for (absl::string_view piece : pieces) {
    if (finer.size() > max_pieces) break;
    RECURVE_RETURN_IF_ERROR(
        step.pattern->Split(piece, &finer, max_pieces, step.matches_only));
  }
  return finer;
}

Pieces PutSpaces(const Pieces& pieces, std::string* text) {
  Rewriter out(TotalBytes(pieces) + pieces.size());
  for (absl::string_view piece : pieces) {
    if (piece[0] != ' ') out.Append(" ");
    out.Append(piece);
    out.EndPiece();
  }
  return out.Finish(text);
}

// Appends a piece with its spaces written as symbols. If it is split, each
// symbol begins another piece.
void AppendMetaspaced(const PreTokenizer::Metaspace& step,
                      absl::string_view piece, size_t max_pieces,
                      Rewriter* out) {
  const absl::string_view symbol = step.symbol;
  for (size_t at = 0; at < piece.size();) {
    const bool is_symbol = absl::StartsWith(piece.substr(at), symbol);
    if (is_symbol || piece[at] == ' ') {
      if (step.split) out->EndPiece();
      if (out->num_pieces() > max_pieces) return;
      out->Append(symbol);
      at += is_symbol ? symbol.size() : 1;
      continue;
    }
    const size_t begin = at++;
    while (at < piece.size() && piece[at] != ' ' && piece[at] != symbol[0]) {
      ++at;
    }
    out->Append(piece.substr(begin, at - begin));
  }
  out->EndPiece();
}

Pieces PutMetaspaces(const PreTokenizer::Metaspace& step, const Pieces& pieces,
                     bool is_first, size_t max_pieces, std::string* text) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  Rewriter out(TotalBytes(pieces));
  for (absl::string_view piece : pieces) {
    if (out.num_pieces() > max_pieces) break;
    const bool prepends = step.prepend == Prepend::kAlways ||
                          (step.prepend == Prepend::kFirst && is_first);
    is_first = false;
    if (prepends && piece[0] != ' ' && !absl::StartsWith(piece, step.symbol)) {
      out.Append(step.symbol);
    }
    AppendMetaspaced(step, piece, max_pieces, &out);
  }
  return out.Finish(text);
}

}  // namespace

bool PreTokenizer::drops_text() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const Step& step) { return step.matches_only; });
}

absl::Status PreTokenizer::ForEachWord(
    absl::string_view text, bool is_first, size_t max_words,
    absl::FunctionRef<absl::Status(absl::string_view)> take) const {
  if (text.empty()) return absl::OkStatus();
  // A step may drop whole pieces.
  if (drops_text()) max_words = std::numeric_limits<size_t>::max();
  Pieces words = {text};
  // What the words refer to, once a step has rewritten the text, and room for
  // the next one.
  std::string texts[2];
  int next = 0;
  for (const Step& step : steps_) {
    if (step.pattern.has_value()) {
      const char* begin = words.empty() ? nullptr : words[0].data();
      RECURVE_ASSIGN_OR_RETURN(words, SplitAll(step, words, max_words));
      is_first = is_first && !words.empty() && words[0].data() == begin;
      continue;
    }
    std::string* rewritten = &texts[next];
    next = 1 - next;
    words = step.metaspace.has_value()
                ? PutMetaspaces(*step.metaspace, words, is_first, max_words,
                                rewritten)
                : PutSpaces(words, rewritten);
  }
  for (absl::string_view word : words) RECURVE_RETURN_IF_ERROR(take(word));
  return absl::OkStatus();
}

}  // namespace recurve
