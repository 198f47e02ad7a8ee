#ifndef RECURVE_ENGINE_TOKENIZER_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Converts text to token ids, and ids to bytes. A new kind is one class and one
// row in load_tokenizer.cc.
//
// Thread safety: immutable, so any thread may call.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The kind as LoadTokenizer() and config.json spell it: "bytes".
  virtual absl::string_view name() const = 0;

  // Ids of `text`, preceded by the beginning-of-sequence token if `add_bos`.
  // InvalidArgument for text that the vocabulary cannot express, and for
  // `add_bos` if the model has no such token. OutOfRange for more than
  // `max_ids` ids, BOS included, as soon as that is certain; the message
  // follows the name of the text: "has more than 256 tokens". REQUIRES: max_ids
  // >= 0.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_bos, int64_t max_ids) const = 0;
  // As above, for any number of ids.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool add_bos) const {
    return Encode(text, add_bos, std::numeric_limits<int64_t>::max());
  }

  // The bytes that a token adds to the text; empty for special tokens. A
  // character may be split over several tokens. Valid as long as the tokenizer.
  // REQUIRES: 0 <= id < vocab_size().
  virtual absl::string_view TokenBytes(int32_t id) const = 0;

  // As TokenBytes, for a token with no text before it: SentencePiece puts a
  // space before a text, which decoding must remove. *at_start says whether the
  // next token still has no text before it.
  virtual absl::string_view FirstTokenBytes(int32_t id, bool* at_start) const {
    const absl::string_view bytes = TokenBytes(id);
    *at_start = bytes.empty();
    return bytes;
  }

  // The spelling of a special token in the tokenizer's files ("</s>"); empty
  // for other tokens, which have TokenBytes, and where the files spell none.
  // Valid as long as the tokenizer. REQUIRES: 0 <= id < vocab_size().
  virtual absl::string_view SpecialText(int32_t) const { return ""; }

  // Whether the token is one byte of a run: adjacent such tokens are one text
  // if their bytes are UTF-8, and otherwise U+FFFD for each byte. Special
  // tokens do not separate them. REQUIRES: 0 <= id < vocab_size().
  virtual bool IsByteOfRun(int32_t) const { return false; }
  // The text of a run with no text before it, of which it is given the text.
  virtual absl::string_view FirstRun(absl::string_view text) const {
    return text;
  }

  // The id of the token spelled `token` in the tokenizer's files, special ones
  // included ("</s>"); nothing if there is none. Scans all tokens.
  virtual std::optional<int32_t> FindToken(absl::string_view) const {
    return std::nullopt;
  }
  // The end-of-sequence token, if the vocabulary's file names one, as
  // SentencePiece's does.
  virtual std::optional<int32_t> eos_id() const { return std::nullopt; }

  int32_t vocab_size() const { return vocab_size_; }
  std::optional<int32_t> bos_id() const { return bos_id_; }

 protected:
  Tokenizer(int32_t vocab_size, std::optional<int32_t> bos_id)
      : vocab_size_(vocab_size), bos_id_(bos_id) {}

 private:
  const int32_t vocab_size_;
  const std::optional<int32_t> bos_id_;
};

// A tokenizer that needs no files; load_tokenizer.h has the others.
// InvalidArgument for an unknown kind, with a list of the supported ones, and
// for a vocabulary or special tokens that do not fit the kind. bos and eos are
// nullopt for a model without them.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(
    absl::string_view kind, int32_t vocab_size, std::optional<int32_t> bos_id,
    std::optional<int32_t> eos_id);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_TOKENIZER_H_
