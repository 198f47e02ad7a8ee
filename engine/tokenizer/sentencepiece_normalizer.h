#ifndef RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
#define RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/sentencepiece_model.h"

namespace recurve {

// Brings a text into the form in which SentencePiece looks for pieces:
// characters replaced by the model's map, white space trimmed where asked,
// spaces written as U+2581, a byte that is no UTF-8 as U+FFFD.
//
// Thread safety: the const methods may run concurrently.
class SentencePieceNormalizer {
 public:
  // `model` must outlive this object.
  explicit SentencePieceNormalizer(const SentencePieceModel* model)
      : model_(model) {}

  // Reads the model's charsmap. Before any other call.
  absl::Status Init();

  std::string Normalize(absl::string_view text) const;

 private:
  // What the beginning of `rest` becomes; *size is how much of it that is.
  absl::string_view Prefix(absl::string_view rest, size_t* size) const;
  // The longest rule of the map that applies; 0 where none does.
  size_t LongestRule(absl::string_view rest, absl::string_view* to) const;

  const SentencePieceModel* model_;
  std::vector<uint32_t> units_;  // a double array, as Darts-clone writes it
  absl::string_view targets_;    // what rules map to, each ended by a NUL
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
