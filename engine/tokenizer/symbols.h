#ifndef RECURVE_ENGINE_TOKENIZER_SYMBOLS_H_
#define RECURVE_ENGINE_TOKENIZER_SYMBOLS_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/tokenizer/unicode_class.h"

namespace recurve {

// The alphabet in which split patterns match: ASCII characters are themselves,
// any other character is replaced by its class. So the regex library works on
// bytes, needs no Unicode data of its own (which would be of the distribution's
// version) and accepts invalid UTF-8.
constexpr uint8_t kFirstClassSymbol = 0x80;  // + UnicodeClass
// Letters that (?i:...) matches with an ASCII letter.
constexpr uint8_t kLongS = 0x88;       // U+017F
constexpr uint8_t kKelvinSign = 0x89;  // U+212A

using SymbolSet = std::bitset<256>;

// The symbols of a class, ASCII ones included.
SymbolSet SymbolsOf(UnicodeClass unicode_class);

struct SymbolText {
  std::string symbols;
  // Start of each symbol in the text, then the size of the text. Empty for an
  // ASCII text: there symbol i is byte i.
  std::vector<uint32_t> starts;

  size_t Start(size_t symbol) const {
    return starts.empty() ? symbol : starts[symbol];
  }
};

// An invalid UTF-8 byte is one symbol of kOther. REQUIRES: less than 4 GiB.
SymbolText ToSymbols(absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_SYMBOLS_H_
