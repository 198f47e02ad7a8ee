#ifndef RECURVE_ENGINE_TOKENIZER_PATTERN_TRANSLATOR_H_
#define RECURVE_ENGINE_TOKENIZER_PATTERN_TRANSLATOR_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Translates the pattern to PCRE2 syntax over symbols (symbols.h).
//
// Supports the common subset of Oniguruma (which the reference library uses)
// and PCRE2: ASCII literals, | and groups (...), (?:...), (?i:...), (?=...),
// (?!...); classes [...] of literals, ranges and escapes; \s \S \d \D \p{..}
// \P{..} of L, M, N, Nd, Nl, No; \r \n \t \f and escaped punctuation; the
// quantifiers * + ? and {n}, {n,}, {n,m}, the first three also lazy or
// possessive. InvalidArgument names anything else and its position.
absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_PATTERN_TRANSLATOR_H_
