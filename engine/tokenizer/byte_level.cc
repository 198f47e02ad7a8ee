#include "engine/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

constexpr int kAlphabetEnd = 0x100 + 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

// Byte of each character below kAlphabetEnd, or -1.
constexpr std::array<int16_t, kAlphabetEnd> kByteOfCode = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[StandsForItself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}();

}  // namespace

std::optional<std::string> BytesOfToken(absl::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    char32_t code = 0;
    const size_t length = DecodeCharacter(token, &code);
    if (length == 0 || code >= kAlphabetEnd || kByteOfCode[code] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kByteOfCode[code]));
    token.remove_prefix(length);
  }
  return bytes;
}

std::string TextOfToken(absl::string_view token) {
  return BytesOfToken(token).value_or(std::string(token));
}

}  // namespace recurve
