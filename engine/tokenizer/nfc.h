#ifndef RECURVE_ENGINE_TOKENIZER_NFC_H_
#define RECURVE_ENGINE_TOKENIZER_NFC_H_

#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// Unicode's composed normal form, of the Unicode version that utf8proc has.
// Bytes that are not UTF-8 stay as they are; the text around them is normalised
// piece by piece. Time n log n in the length, however many marks are stacked.
std::string NormalizeNfc(absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_NFC_H_
