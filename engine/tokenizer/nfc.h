#ifndef RECURVE_ENGINE_TOKENIZER_NFC_H_
#define RECURVE_ENGINE_TOKENIZER_NFC_H_

#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// Unicode's composed normal form, of Unicode 9, as the reference tokenizers
// have it, whatever utf8proc knows. Invalid UTF-8 is copied unchanged; the text
// around it is normalised piece by piece. Time n log n in the length, for any
// number of stacked marks.
std::string NormalizeNfc(absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_NFC_H_
