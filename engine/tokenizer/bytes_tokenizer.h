#ifndef RECURVE_ENGINE_TOKENIZER_BYTES_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_BYTES_TOKENIZER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// Token b is the byte b, for b below 256; every later id is special and has no
// text. Accepts any bytes, valid UTF-8 or not.
class BytesTokenizer : public Tokenizer {
 public:
  static constexpr char kName[] = "bytes";

  // The names of the arguments of Make() in errors.
  struct Names {
    std::string vocab_size = "vocab_size";
    std::string bos_id = "bos_token_id";
    std::string eos_id = "eos_token_id";
  };

  // InvalidArgument for a vocabulary of fewer than 256 tokens, and for a
  // special token that is a byte or outside the vocabulary.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
      int32_t vocab_size, std::optional<int32_t> bos_id,
      std::optional<int32_t> eos_id, const Names& names);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
      int32_t vocab_size, std::optional<int32_t> bos_id,
      std::optional<int32_t> eos_id) {
    return Make(vocab_size, bos_id, eos_id, Names());
  }

  absl::string_view name() const override { return kName; }
  using Tokenizer::Encode;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool add_bos,
                                              int64_t max_ids) const override;
  absl::string_view TokenBytes(int32_t id) const override;

 private:
  using Tokenizer::Tokenizer;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BYTES_TOKENIZER_H_
