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
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// BPE over bytes or characters: added tokens are found first, then the text
// between them is normalised, split into words, and each word's bytes or
// characters are merged to tokens.
//
// Any bytes are accepted. Invalid UTF-8 has no character class in patterns and
// is otherwise treated as ordinary bytes, so that over bytes and without a
// normaliser decoding restores every input.
class BpeTokenizer : public Tokenizer {
 public:
  struct Parts {
    std::string name;                 // kind, as returned by Tokenizer::name()
    std::vector<std::string> tokens;  // bytes by id; "" for special tokens
    Bpe bpe;
    PreTokenizer pre_tokenizer;
    std::vector<AddedToken> added_tokens;
    Normalizer normalizer = {};
    std::optional<int32_t> bos_id = std::nullopt;
    // Over characters: tokens that are a byte of a run, by id, which may end
    // early; and tokens that are another text at the start, by id.
    std::vector<bool> byte_tokens = {};
    absl::flat_hash_map<int32_t, std::string> first_texts = {};
    std::string strip = {};  // dropped at the start of a decoded text, once
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
  absl::string_view FirstTokenBytes(int32_t id, bool* at_start) const override;
  absl::string_view SpecialText(int32_t id) const override;
  bool IsByteOfRun(int32_t id) const override;
  absl::string_view FirstRun(absl::string_view text) const override;
  std::optional<int32_t> FindToken(absl::string_view token) const override;

 private:
  // Encodes text without raw added tokens. `is_first`: the whole text begins
  // with it.
  absl::Status EncodeNormalized(absl::string_view text, bool is_first,
                                int64_t max_ids,
                                std::vector<int32_t>* ids) const;
  // OutOfRange if `ids` plus the ids of `bytes` more bytes of normalised text
  // certainly exceed `max_ids`.
  absl::Status CheckRoom(size_t bytes, int64_t max_ids,
                         const std::vector<int32_t>& ids) const;

  const std::string name_;
  std::vector<std::string> tokens_;
  const Bpe bpe_;
  const PreTokenizer pre_tokenizer_;
  const Normalizer normalizer_;
  const std::vector<bool> byte_tokens_;
  const absl::flat_hash_map<int32_t, std::string> first_texts_;
  const std::string strip_;
  // Spellings of special tokens by id.
  absl::flat_hash_map<int32_t, std::string> special_texts_;
  // Ids of added tokens by their text in the file.
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  AddedTokens raw_added_;         // found before normalisation
  AddedTokens normalized_added_;  // and after it
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BPE_TOKENIZER_H_
