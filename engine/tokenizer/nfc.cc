#include "engine/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

struct CodeRange {
  char32_t first, last;
};

// Characters that decompose, compose or are ordered in Unicode 18 and are not
// in Unicode 9, ascending. The reference has the data of Unicode 9, in which
// they are like any unassigned character. Of a pair that composes, the first
// one suffices.
constexpr CodeRange kLaterCharacters[] = {
    // clang-format off
    {0x5c8, 0x5c9}, {0x7fd, 0x7fd}, {0x897, 0x89f}, {0x8ca, 0x8d3},
    {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba},
    {0x1715, 0x1715}, {0x1abf, 0x1af0}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c},
    {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da},
    {0x105e4, 0x105e4}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d},
    {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf}, {0x10ef0, 0x10efb},
    {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11382, 0x11385},
    {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x11391},
    {0x113b8, 0x113b8}, {0x113bb, 0x113bb}, {0x113c2, 0x113c2},
    {0x113c5, 0x113c5}, {0x113c7, 0x113c9}, {0x113ce, 0x113d0},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x1611e, 0x16129}, {0x1612f, 0x1612f}, {0x16d63, 0x16d63},
    {0x16d67, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1d127, 0x1d128},
    {0x1d250, 0x1d252}, {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f},
    {0x1d280, 0x1d281}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
    {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6},
    {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5},
    // clang-format on
};

bool IsLater(char32_t code) {
  const CodeRange* const found = std::lower_bound(
      std::begin(kLaterCharacters), std::end(kLaterCharacters), code,
      [](const CodeRange& range, char32_t c) { return range.last < c; });
  return found != std::end(kLaterCharacters) && found->first <= code;
}

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
    const size_t size = std::max<size_t>(1, length);
    if (length > 0 && !IsLater(code)) {
      Decompose(code, &codes);
    } else {
      AppendComposed(&codes, &out);
      const absl::string_view unchanged = text.substr(i, size);
      out.append(unchanged.data(), unchanged.size());
    }
    i += size;
  }
  AppendComposed(&codes, &out);
  return out;
}

}  // namespace recurve
