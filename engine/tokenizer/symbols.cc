#include "engine/tokenizer/symbols.h"

#include <algorithm>

#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

uint8_t SymbolOf(char32_t code) {
  if (code < 0x80) return static_cast<uint8_t>(code);
  if (code == 0x17f) return kLongS;
  if (code == 0x212a) return kKelvinSign;
  return kFirstClassSymbol + static_cast<uint8_t>(ClassOf(code));
}

}  // namespace

SymbolSet SymbolsOf(UnicodeClass unicode_class) {
  SymbolSet set;
  for (char32_t code = 0; code < 0x80; ++code) {
    if (ClassOf(code) == unicode_class) set.set(code);
  }
  set.set(kFirstClassSymbol + static_cast<uint8_t>(unicode_class));
  if (unicode_class == UnicodeClass::kLetter) set.set(kLongS).set(kKelvinSign);
  return set;
}

SymbolText ToSymbols(absl::string_view text) {
  SymbolText out;
  if (std::none_of(text.begin(), text.end(),
                   [](char c) { return (c & 0x80) != 0; })) {
    out.symbols.assign(text.begin(), text.end());
    return out;
  }
  out.symbols.reserve(text.size());
  out.starts.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size();) {
    char32_t code = 0;
    const size_t length = DecodeCharacter(text.substr(i), &code);
    const uint8_t symbol =
        length > 0
            ? SymbolOf(code)
            : kFirstClassSymbol + static_cast<uint8_t>(UnicodeClass::kOther);
    out.symbols.push_back(static_cast<char>(symbol));
    out.starts.push_back(static_cast<uint32_t>(i));
    i += std::max<size_t>(1, length);
  }
  out.starts.push_back(static_cast<uint32_t>(text.size()));
  return out;
}

}  // namespace recurve
