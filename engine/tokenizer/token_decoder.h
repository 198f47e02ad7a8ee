#ifndef RECURVE_ENGINE_TOKENIZER_TOKEN_DECODER_H_
#define RECURVE_ENGINE_TOKENIZER_TOKEN_DECODER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace recurve {

// What a tokenizer.json's decoder makes of tokens.
//
// Thread safety: immutable, so any thread may call.
class TokenDecoder {
 public:
  // Writes `to` for each `from` in a token, in order of the steps.
  struct Step {
    std::string from;  // not empty
    std::string to;
    bool drop_at_start = false;  // nothing for it in a text's first token
  };
  struct Options {
    // Characters stand for bytes; excludes all that follows.
    bool byte_level = false;
    std::vector<Step> steps;
    bool byte_fallback = false;  // tokens <0x00> to <0xFF> are bytes
    std::string strip;  // one character, dropped at the start of a text, once
  };

  explicit TokenDecoder(Options options);

  struct Text {
    std::string text;
    bool is_byte = false;  // of byte_fallback: the text is that byte
    // As the first token of a text, if that differs.
    std::optional<std::string> first;
  };
  Text Decode(absl::string_view token) const;

  bool byte_level() const { return options_.byte_level; }
  const std::string& strip() const { return options_.strip; }

 private:
  Options options_;
};

// The byte that a token <0x0A> stands for; nullopt for another token.
std::optional<uint8_t> ByteOfFallbackToken(absl::string_view token);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_TOKEN_DECODER_H_
