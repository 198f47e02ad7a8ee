#ifndef RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/tokenizer/sentencepiece_normalizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

constexpr char kSentencePieceKind[] = "sentencepiece";

// A SentencePiece .model, unigram or BPE, with the same ids as the library of
// that name. The library itself cannot be linked: Debian's contains its own
// protobuf, whose symbols clash with the one that gRPC uses, so the program
// aborts at startup.
class SentencePieceTokenizer : public Tokenizer {
 public:
  // REQUIRES: at most vocab_size pieces; bos_id in the vocabulary.
  SentencePieceTokenizer(int32_t vocab_size, std::optional<int32_t> bos_id,
                         std::unique_ptr<const SentencePieceModel> model,
                         SentencePieceNormalizer normalizer);

  absl::string_view name() const override { return kSentencePieceKind; }
  using Tokenizer::Encode;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool add_bos,
                                              int64_t max_ids) const override;
  absl::string_view TokenBytes(int32_t id) const override;
  absl::string_view FirstTokenBytes(int32_t id, bool* at_start) const override;
  absl::string_view SpecialText(int32_t id) const override;
  std::optional<int32_t> FindToken(absl::string_view token) const override;
  std::optional<int32_t> eos_id() const override {
    return FindToken(model_->eos_piece);
  }

 private:
  // Whether `normalized` has more ids than `max_ids`, judged by its size alone.
  bool HasMoreIds(absl::string_view normalized, int64_t max_ids) const;

  const std::unique_ptr<const SentencePieceModel> model_;
  const SentencePieceNormalizer normalizer_;
  std::vector<std::string> texts_;  // by id
  size_t longest_piece_ = 1;        // in bytes
};

// Reads a .model file with contents `bytes` and name `file`. InvalidArgument
// says what is malformed or unsupported.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadSentencePiece(
    const std::string& file, absl::string_view bytes, int32_t vocab_size,
    std::optional<int32_t> bos_id);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
