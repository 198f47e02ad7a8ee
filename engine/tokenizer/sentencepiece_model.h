#ifndef RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/byte_trie.h"

namespace recurve {

// U+2581, which stands for a space inside pieces.
constexpr absl::string_view kSpaceSymbol = "\xe2\x96\x81";

// A SentencePiece .model file, read and checked. Enum and field numbers are
// those of its sentencepiece_model.proto.
struct SentencePieceModel {
  enum class Algorithm { kUnigram = 1, kBpe = 2 };
  enum class Type {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };

  // Whether this is a piece that stands for its text: normal, user-defined or
  // unused.
  bool IsWord(int32_t id) const;

  std::vector<Piece> pieces;  // by id
  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false;
  std::string unk_surface = " \xe2\x81\x87 ";  // the decoded form of <unk>
  int32_t unk_id = -1;
  std::string eos_piece = "</s>";  // for a vocabulary that has one

  // Normaliser settings.
  bool add_dummy_prefix = true;  // a space before the text
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;  // the prefix's space goes at the end of
                                      // the text
  std::string charsmap;               // precompiled; empty: none

  // Derived from `pieces`.
  absl::flat_hash_map<std::string, int32_t> words;  // ids where IsWord()
  ByteTrie word_prefixes;                           // the same words, for
                                                    // prefix search
  ByteTrie user_defined;                            // the user-defined ones
  std::array<int32_t, 256> byte_ids{};              // with byte_fallback
};

// `file` is the name for errors. InvalidArgument says what is malformed or not
// supported.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(
    const std::string& file, absl::string_view bytes);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_MODEL_H_
