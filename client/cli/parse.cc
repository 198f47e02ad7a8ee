#include "client/cli/parse.h"

#include <cmath>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

// SimpleAtoi alone would also take signs and blanks.
bool ParseUint32(absl::string_view text, uint32_t* value) {
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return absl::SimpleAtoi(text, value);
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseIdList(absl::string_view text) {
  std::vector<uint32_t> ids;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    uint32_t id = 0;
    if (!ParseUint32(item, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' in '", text,
                       "' is not a token id; expected ids like 1,2,3"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(
    absl::string_view text) {
  const size_t colon = text.find(':');
  uint32_t id = 0;
  float value = 0;
  if (colon == absl::string_view::npos ||
      !ParseUint32(text.substr(0, colon), &id) ||
      !absl::SimpleAtof(text.substr(colon + 1), &value) ||
      !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not ID:VALUE, a token id and a finite number"));
  }
  return std::make_pair(id, value);
}

absl::StatusOr<CountRange> ParseCountRange(absl::string_view text) {
  const size_t colon = text.find(':');
  CountRange range;
  const bool well_formed =
      colon == absl::string_view::npos
          ? ParseUint32(text, &range.min)
          : ParseUint32(text.substr(0, colon), &range.min) &&
                ParseUint32(text.substr(colon + 1), &range.max);
  if (colon == absl::string_view::npos) range.max = range.min;
  if (!well_formed || range.min < 1 || range.min > range.max) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not a count N or a range MIN:MAX of counts with 1 "
                     "<= MIN <= MAX <= 4294967295"));
  }
  return range;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path,
                                         size_t max_bytes) {
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("'", path, "' cannot be opened for reading"));
  }
  std::string content;
  char buffer[1 << 14];
  size_t count = 0;
  while (content.size() <= max_bytes &&
         (count = std::fread(buffer, 1, sizeof(buffer), file)) > 0) {
    content.append(buffer, count);
  }
  const bool failed = std::ferror(file) != 0;
  if (file != stdin) std::fclose(file);
  if (failed) {
    return absl::InternalError(absl::StrCat("'", path, "' cannot be read"));
  }
  if (content.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' has more than ", max_bytes, " bytes"));
  }
  return content;
}

bool IsProtobufString(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const uint32_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return false;
    uint32_t code = lead & (0xffu >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0u) != 0x80u) return false;
      code = (code << 6) | (byte(i + k) & 0x3fu);
    }
    const bool overlong =
        (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (overlong || surrogate || code > 0x10ffff) return false;
    i += length;
  }
  return true;
}

}  // namespace recurve
