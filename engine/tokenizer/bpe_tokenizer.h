#ifndef RECURVE_ENGINE_TOKENIZER_BPE_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_BPE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// Byte-level BPE: added tokens are found first, then the text between them is
// normalised, split into words, and each word's bytes are merged to tokens.
//
// Any bytes are accepted. Invalid UTF-8 has no character class in patterns and
// is otherwise treated as ordinary bytes, so that without a normaliser decoding
// restores every input.
class BpeTokenizer : public Tokenizer {
 public:
  struct Parts {
    std::string name;                 // kind, as returned by Tokenizer::name()
    std::vector<std::string> tokens;  // bytes by id; "" for special tokens
    Bpe bpe;
    PreTokenizer pre_tokenizer;
    std::vector<AddedToken> added_tokens;
    bool nfc = false;
    std::optional<int32_t> bos_id;
  };

  // Ids of `parts.tokens` from vocab_size on are padding of the vocabulary:
  // `parts.tokens` is grown to that size. REQUIRES: no more than vocab_size.
  BpeTokenizer(int32_t vocab_size, Parts parts);

  absl::string_view name() const override { return name_; }
  using Tokenizer::Encode;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool add_bos,
                                              int64_t max_ids) const override;
  absl::string_view TokenBytes(int32_t id) const override;
  std::optional<int32_t> FindToken(absl::string_view token) const override;

 private:
  // Encodes text without raw added tokens.
  absl::Status EncodeNormalized(absl::string_view text, int64_t max_ids,
                                std::vector<int32_t>* ids) const;
  // OutOfRange if `ids` plus the ids of `bytes` more bytes of normalised text
  // certainly exceed `max_ids`.
  absl::Status CheckRoom(size_t bytes, int64_t max_ids,
                         const std::vector<int32_t>& ids) const;

  const std::string name_;
  std::vector<std::string> tokens_;
  const Bpe bpe_;
  const PreTokenizer pre_tokenizer_;
  const bool nfc_;
  // Ids of added tokens by their text in the file.
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  AddedTokens raw_added_;         // found before normalisation
  AddedTokens normalized_added_;  // and after it
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BPE_TOKENIZER_H_
