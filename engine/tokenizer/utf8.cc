#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

void Utf8Decoder::Start(uint8_t byte, std::string* text) {
  // Table 3-7 of the Unicode Standard: the second byte has a narrower range
  // after E0 and F0 (overlong forms), ED (surrogates) and F4 (beyond U+10FFFF).
  low_ = 0x80;
  high_ = 0xbf;
  if (byte < 0x80) {
    text->push_back(static_cast<char>(byte));
    return;
  }
  if (byte < 0xc2 || byte > 0xf4) {
    text->append(kReplacement.data(), kReplacement.size());
    return;
  }
  missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  if (byte == 0xe0) low_ = 0xa0;
  if (byte == 0xed) high_ = 0x9f;
  if (byte == 0xf0) low_ = 0x90;
  if (byte == 0xf4) high_ = 0x8f;
  partial_.assign(1, static_cast<char>(byte));
}

void Utf8Decoder::Decode(absl::string_view bytes, std::string* text) {
  for (char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (missing_ > 0 && (byte < low_ || byte > high_)) Finish(text);
    if (missing_ == 0) {
      Start(byte, text);
      continue;
    }
    partial_.push_back(c);
    low_ = 0x80;
    high_ = 0xbf;
    if (--missing_ == 0) {
      text->append(partial_);
      partial_.clear();
    }
  }
}

void Utf8Decoder::Finish(std::string* text) {
  if (missing_ == 0) return;
  text->append(kReplacement.data(), kReplacement.size());
  partial_.clear();
  missing_ = 0;
}

bool IsValidUtf8(absl::string_view text) {
  // What comes out is always valid, and valid text passes unchanged.
  Utf8Decoder decoder;
  std::string decoded;
  decoder.Decode(text, &decoded);
  decoder.Finish(&decoded);
  return decoded == text;
}

}  // namespace recurve
