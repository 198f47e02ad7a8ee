#include "engine/tokenizer/token_decoder.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "engine/tokenizer/byte_level.h"

namespace recurve {
namespace {

std::string Rewrite(const std::vector<TokenDecoder::Step>& steps,
                    absl::string_view token, bool is_first) {
  std::string text(token);
  for (const TokenDecoder::Step& step : steps) {
    const bool drop = is_first && step.drop_at_start;
    text = absl::StrReplaceAll(text, {{step.from, drop ? "" : step.to}});
  }
  return text;
}

}  // namespace

std::optional<uint8_t> ByteOfFallbackToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") ||
      !absl::EndsWith(token, ">")) {
    return std::nullopt;
  }
  absl::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);  // as in the reference
  uint32_t byte = 0;
  for (char c : digits) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
      return std::nullopt;
    }
    const int digit = absl::ascii_isdigit(static_cast<unsigned char>(c))
                          ? c - '0'
                          : absl::ascii_tolower(c) - 'a' + 10;
    byte = byte * 16 + static_cast<uint32_t>(digit);
  }
  return static_cast<uint8_t>(byte);
}

TokenDecoder::TokenDecoder(Options options) : options_(std::move(options)) {}

TokenDecoder::Text TokenDecoder::Decode(absl::string_view token) const {
  if (options_.byte_level) return {TextOfToken(token), false, std::nullopt};
  Text out;
  out.text = Rewrite(options_.steps, token, /*is_first=*/false);
  const std::optional<uint8_t> byte =
      options_.byte_fallback ? ByteOfFallbackToken(out.text) : std::nullopt;
  if (byte.has_value()) {
    out.text.assign(1, static_cast<char>(*byte));
    out.is_byte = true;
    return out;
  }
  std::string first = Rewrite(options_.steps, token, /*is_first=*/true);
  if (first != out.text) out.first = std::move(first);
  return out;
}

}  // namespace recurve
