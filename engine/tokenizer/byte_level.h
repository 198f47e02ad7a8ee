#ifndef RECURVE_ENGINE_TOKENIZER_BYTE_LEVEL_H_
#define RECURVE_ENGINE_TOKENIZER_BYTE_LEVEL_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// The alphabet of byte-level vocabularies: each byte is one printable
// character. Printable bytes of Latin-1 stand for themselves, the 68 others for
// U+0100 and up, in order; so a space is "Ġ".
//
// The bytes that `token` stands for, or nullopt if it has a character outside
// the alphabet.
std::optional<std::string> BytesOfToken(absl::string_view token);

// The decoded form of a token: its bytes, or the token itself if it is outside
// the alphabet.
std::string TextOfToken(absl::string_view token);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BYTE_LEVEL_H_
