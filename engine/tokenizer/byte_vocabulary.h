#ifndef RECURVE_ENGINE_TOKENIZER_BYTE_VOCABULARY_H_
#define RECURVE_ENGINE_TOKENIZER_BYTE_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/bpe.h"

namespace recurve {

// Collects the tokens and merges of a vocabulary, as files spell them, and
// converts them to bytes. Errors are InvalidArgument and describe the bad
// argument, not its location.
class ByteVocabulary {
 public:
  // How files spell tokens.
  enum class Spelling {
    kByteLevel,  // each byte as a printable character
    kPlain,      // as text
  };
  // `vocab_size` is the model's: ids must be below it.
  explicit ByteVocabulary(int32_t vocab_size,
                          Spelling spelling = Spelling::kByteLevel)
      : vocab_size_(vocab_size), spelling_(spelling) {}

  // A byte-level token outside the alphabet stands for its own UTF-8 bytes, and
  // no word is encoded as it.
  absl::Status AddToken(absl::string_view token, int64_t id);
  // As AddToken, for a token given as bytes.
  absl::Status AddBytes(const std::string& bytes, int64_t id);
  // A token that is not used in words: `bytes` is only its decoded form.
  absl::Status AddUnreachable(std::string bytes, int64_t id);

  // The next merge; its rank is the number of earlier ones.
  absl::Status AddMerge(absl::string_view left, absl::string_view right);

  // Special tokens have no text. REQUIRES: an id that was added.
  void ClearText(int32_t id) { tokens_[static_cast<size_t>(id)].clear(); }

  // The first byte that is not a token.
  std::optional<int> MissingByte() const;

  // How many of the tokens of several bytes are the result of a merge. Tokens
  // that are not the concatenation of two others are not counted, nor those
  // written like special tokens, <…>: no merge produces them.
  struct Merged {
    int64_t wanted = 0;
    int64_t made = 0;
    std::optional<int32_t> first_missing;  // the lowest id
  };
  Merged CountMerged() const;

  bool Has(int64_t id) const {
    return id >= 0 && id < static_cast<int64_t>(taken_.size()) && taken_[id];
  }
  // One more than the largest id.
  int64_t num_ids() const { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> Find(absl::string_view token) const;
  // REQUIRES: an id that was added.
  const std::string& BytesOf(int32_t id) const {
    return tokens_[static_cast<size_t>(id)];
  }

  std::vector<std::string> TakeTokens() { return std::move(tokens_); }
  Bpe::Vocabulary TakeVocabulary() { return std::move(vocabulary_); }
  Bpe::Merges TakeMerges() { return std::move(merges_); }

 private:
  // The bytes of a token that words can become; nullopt if it is not one.
  std::optional<std::string> Bytes(absl::string_view token) const;

  const int32_t vocab_size_;
  const Spelling spelling_;
  std::vector<std::string> tokens_;  // bytes by id
  std::vector<bool> taken_;          // by id
  Bpe::Vocabulary vocabulary_;       // tokens that words can become
  Bpe::Merges merges_;
  int32_t next_rank_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BYTE_VOCABULARY_H_
