#include "engine/checkpoint/quote.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace recurve {

std::string Quote(absl::string_view text) {
  constexpr size_t kMaxBytes = 80;
  // CHexEscape and not its UTF-8-safe kin: the cut may split a character.
  if (text.size() > kMaxBytes) {
    return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxBytes)),
                        "…' (", text.size(), " bytes)");
  }
  return absl::StrCat("'", absl::CHexEscape(text), "'");
}

}  // namespace recurve
