#ifndef RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
#define RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/sentencepiece_model.h"

namespace recurve {

// Normalises a text for SentencePiece: characters replaced by the model's map,
// white space trimmed if configured, spaces written as U+2581, an invalid UTF-8
// byte as U+FFFD.
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
  // The replacement of the beginning of `rest`; *size is the number of bytes
  // replaced.
  absl::string_view Prefix(absl::string_view rest, size_t* size) const;
  // The longest matching rule of the map; 0 if none matches.
  size_t LongestRule(absl::string_view rest, absl::string_view* to) const;

  const SentencePieceModel* model_;
  std::vector<uint32_t> units_;  // a double array in the format of Darts-clone
  absl::string_view targets_;    // replacements of the rules, each terminated
                                 // by a NUL
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
