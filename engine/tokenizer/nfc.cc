#include "engine/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

int CombiningClass(utf8proc_int32_t code) {
  return static_cast<int>(utf8proc_get_property(code)->combining_class);
}

void Decompose(char32_t code, std::vector<utf8proc_int32_t>* codes) {
  utf8proc_int32_t parts[16];  // the longest decomposition has four
  int boundary_state = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 16,
                              UTF8PROC_DECOMPOSE, &boundary_state);
  RECURVE_CHECK(count >= 0 && count <= 16);
  codes->insert(codes->end(), parts, parts + count);
}

// The canonical order of marks. utf8proc_decompose() sorts by exchanging
// neighbours, in quadratic time for a crafted text.
void SortMarks(std::vector<utf8proc_int32_t>* codes) {
  const auto is_starter = [](utf8proc_int32_t code) {
    return CombiningClass(code) == 0;
  };
  for (auto begin = codes->begin(); begin != codes->end();) {
    begin = std::find_if_not(begin, codes->end(), is_starter);
    const auto end = std::find_if(begin, codes->end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

void AppendComposed(std::vector<utf8proc_int32_t>* codes, std::string* text) {
  SortMarks(codes);
  const utf8proc_ssize_t count = utf8proc_normalize_utf32(
      codes->data(), static_cast<utf8proc_ssize_t>(codes->size()),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  RECURVE_CHECK(count >= 0);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendCharacter(static_cast<char32_t>((*codes)[i]), text);
  }
  codes->clear();
}

}  // namespace

std::string NormalizeNfc(absl::string_view text) {
  const auto* first = std::find_if(text.begin(), text.end(),
                                   [](char c) { return (c & 0x80) != 0; });
  // A mark may combine with the ASCII letter before it.
  const size_t ascii = std::max<ptrdiff_t>(0, first - text.begin() - 1);
  if (first == text.end()) return std::string(text);
  std::string out(text.substr(0, ascii));
  std::vector<utf8proc_int32_t> codes;
  for (size_t i = ascii; i < text.size();) {
    char32_t code = 0;
    const size_t length = DecodeCharacter(text.substr(i), &code);
    if (length > 0) {
      Decompose(code, &codes);
    } else {
      AppendComposed(&codes, &out);
      out.push_back(text[i]);
    }
    i += std::max<size_t>(1, length);
  }
  AppendComposed(&codes, &out);
  return out;
}

}  // namespace recurve
