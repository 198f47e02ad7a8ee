#include "engine/tokenizer/unicode_class.h"

#include <algorithm>

#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

// The last character, or the last byte if that is not part of one.
absl::string_view LastCharacter(absl::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(4, text.size());
       ++length) {
    const absl::string_view last = text.substr(text.size() - length);
    char32_t code = 0;
    if (DecodeCharacter(last, &code) == length) return last;
  }
  return text.substr(text.size() - 1);
}

}  // namespace

UnicodeClass ClassOf(char32_t code) {
  const uint32_t key = static_cast<uint32_t>(code) << 3 | 7;
  const auto after =
      std::upper_bound(kUnicodeTable.begin(), kUnicodeTable.end(), key);
  return static_cast<UnicodeClass>(*(after - 1) & 7);
}

bool IsWord(UnicodeClass unicode_class) {
  return unicode_class != UnicodeClass::kOther &&
         unicode_class != UnicodeClass::kSpace &&
         unicode_class != UnicodeClass::kOtherNumber;
}

UnicodeClass ClassOfFirst(absl::string_view text) {
  char32_t code = 0;
  return DecodeCharacter(text, &code) == 0 ? UnicodeClass::kOther
                                           : ClassOf(code);
}

UnicodeClass ClassOfLast(absl::string_view text) {
  return text.empty() ? UnicodeClass::kOther
                      : ClassOfFirst(LastCharacter(text));
}

size_t LeadingSpace(absl::string_view text) {
  size_t size = 0;
  char32_t code = 0;
  while (const size_t length = DecodeCharacter(text.substr(size), &code)) {
    if (ClassOf(code) != UnicodeClass::kSpace) break;
    size += length;
  }
  return size;
}

size_t TrailingSpace(absl::string_view text) {
  size_t size = 0;
  while (size < text.size()) {
    const absl::string_view last =
        LastCharacter(text.substr(0, text.size() - size));
    if (ClassOfFirst(last) != UnicodeClass::kSpace) break;
    size += last.size();
  }
  return size;
}

}  // namespace recurve
