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
  // The output is always valid, and valid text is unchanged.
  Utf8Decoder decoder;
  std::string decoded;
  decoder.Decode(text, &decoded);
  decoder.Finish(&decoded);
  return decoded == text;
}

size_t DecodeCharacter(absl::string_view text, char32_t* code) {
  if (text.empty()) return 0;
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    *code = lead;
    return 1;
  }
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  char32_t value = lead & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3f);
  }
  // Overlong forms (those of two bytes are excluded by the lead byte),
  // surrogates, and values that are not code points.
  if ((length == 3 && value < 0x800) || (length == 4 && value < 0x10000) ||
      (value >= 0xd800 && value <= 0xdfff) || value > 0x10ffff) {
    return 0;
  }
  *code = value;
  return length;
}

void AppendCharacter(char32_t code, std::string* text) {
  const auto tail = [&](int shift) {
    text->push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3f)));
  };
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text->push_back(static_cast<char>(0xc0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text->push_back(static_cast<char>(0xe0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    text->push_back(static_cast<char>(0xf0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace recurve
