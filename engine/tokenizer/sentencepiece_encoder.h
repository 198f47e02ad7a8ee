#ifndef RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_ENCODER_H_
#define RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_ENCODER_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/tokenizer/sentencepiece_model.h"

namespace recurve {

// A part of a normalised text and its piece; unk_id if there is none.
struct SentencePiecePart {
  absl::string_view text;
  int32_t id;
};

// Merges the pair with the highest score, the leftmost of equals, until no pair
// is a piece; unused pieces are split again. Time n log n.
std::vector<SentencePiecePart> EncodeSentencePieceBpe(
    const SentencePieceModel& model, absl::string_view normalized);

// The segmentation with the highest sum of scores, in the reference's order and
// float arithmetic, so that near ties have the same result. Time: the size of
// the text times the length of the longest piece.
std::vector<SentencePiecePart> EncodeSentencePieceUnigram(
    const SentencePieceModel& model, absl::string_view normalized);

// Bytes of the characters that are pieces by themselves, so that no
// segmentation makes them unknown. Time linear.
size_t KnownSentencePieceBytes(const SentencePieceModel& model,
                               absl::string_view normalized);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SENTENCEPIECE_ENCODER_H_
