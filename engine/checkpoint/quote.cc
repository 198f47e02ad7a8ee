#include "engine/checkpoint/quote.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace recurve {

std::string Quote(absl::string_view text) {
  constexpr size_t kMaxBytes = 80;
  // CHexEscape, not its UTF-8-safe variant: the cut may split a character. A
  // double quote needs no escape inside single quotes.
  const std::string escaped = absl::StrReplaceAll(
      absl::CHexEscape(text.substr(0, kMaxBytes)), {{"\\\"", "\""}});
  if (text.size() > kMaxBytes)
    return absl::StrCat("'", escaped, "…' (", text.size(), " bytes)");
  return absl::StrCat("'", escaped, "'");
}

}  // namespace recurve
