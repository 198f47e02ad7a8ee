#ifndef RECURVE_ENGINE_TOKENIZER_BYTE_LEVEL_H_
#define RECURVE_ENGINE_TOKENIZER_BYTE_LEVEL_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// The alphabet in which byte-level vocabularies are written: each byte is one
// printable character. Printable bytes of Latin-1 stand for themselves, the 68
// others for U+0100 and up, in order; so a space is "Ġ".
//
// The bytes that `token` stands for, or nullopt when it has a character outside
// the alphabet.
std::optional<std::string> BytesOfToken(absl::string_view token);

// What a token decodes to: its bytes, or itself where it is outside the
// alphabet.
std::string TextOfToken(absl::string_view token);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BYTE_LEVEL_H_
