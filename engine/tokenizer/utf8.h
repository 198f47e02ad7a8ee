#ifndef RECURVE_ENGINE_TOKENIZER_UTF8_H_
#define RECURVE_ENGINE_TOKENIZER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// Converts a stream of bytes, split anywhere, into whole UTF-8 characters.
//
// Invalid bytes become U+FFFD, one for each maximal subpart of an ill-formed
// sequence (The Unicode Standard, section 3.9), as Python's
// bytes.decode("utf-8", "replace") does. The output does not depend on how the
// stream was split. Copyable; one thread at a time.
class Utf8Decoder {
 public:
  // Appends the characters that are complete now to *text. At most three bytes
  // are held back.
  void Decode(absl::string_view bytes, std::string* text);

  // Ends the stream: held-back bytes become one U+FFFD.
  void Finish(std::string* text);

 private:
  // Starts a character, or replaces a byte that cannot start one.
  void Start(uint8_t byte, std::string* text);

  std::string partial_;  // a proper prefix of a well-formed character
  int missing_ = 0;      // bytes until it is complete; 0 when it is empty
  // Range of the next byte.
  uint8_t low_ = 0x80;
  uint8_t high_ = 0xbf;
};

bool IsValidUtf8(absl::string_view text);

// Bytes of the character with which `text` begins, and its code point; 0 if
// `text` is empty or begins with an incomplete or invalid character.
size_t DecodeCharacter(absl::string_view text, char32_t* code);

// REQUIRES: a code point other than a surrogate.
void AppendCharacter(char32_t code, std::string* text);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_UTF8_H_
