#ifndef RECURVE_ENGINE_TOKENIZER_UNICODE_CLASS_H_
#define RECURVE_ENGINE_TOKENIZER_UNICODE_CLASS_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace recurve {

// Character properties that tokenizers use: the regex classes \p{L}, \p{M},
// \p{N} and its parts, \s (White_Space) and \w. The data is from Unicode 16, as
// in the reference tokenizers, whatever the distribution has, so that a text
// has the same tokens everywhere.
enum class UnicodeClass : uint8_t {
  kOther,
  kSpace,         // White_Space
  kLetter,        // L
  kMark,          // M
  kDecimal,       // Nd
  kLetterNumber,  // Nl
  kOtherNumber,   // No: a number that is not \w
  kWord,          // \w that is none of the above
};

UnicodeClass ClassOf(char32_t code);

// \w of Unicode's regular expressions.
bool IsWord(UnicodeClass unicode_class);

// The class of the last and the first character of a text, which may hold
// invalid bytes; kOther for those and for an empty text.
UnicodeClass ClassOfLast(absl::string_view text);
UnicodeClass ClassOfFirst(absl::string_view text);

// Bytes of leading or trailing white space in `text`.
size_t LeadingSpace(absl::string_view text);
size_t TrailingSpace(absl::string_view text);

// Runs of code points of one class: start << 3 | class, ascending.
constexpr int kUnicodeTableSize = 2012;
extern const std::array<uint32_t, kUnicodeTableSize> kUnicodeTable;

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_UNICODE_CLASS_H_
