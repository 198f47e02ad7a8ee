#include "engine/tokenizer/sentencepiece_normalizer.h"

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";

// The fields of one unit of the double array.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

}  // namespace

absl::Status SentencePieceNormalizer::Init() {
  const absl::string_view map = model_->charsmap;
  if (map.empty()) return absl::OkStatus();
  // The size of the double array in bytes, the array, the targets.
  uint32_t size = 0;
  if (map.size() > sizeof(size)) std::memcpy(&size, map.data(), sizeof(size));
  if (map.size() <= sizeof(size) || size < sizeof(uint32_t) ||
      size % sizeof(uint32_t) != 0 || size >= map.size() - sizeof(size) ||
      map.back() != '\0') {
    return absl::InvalidArgumentError(
        absl::StrCat("normalizer_spec.precompiled_charsmap of ", map.size(),
                     " bytes is broken"));
  }
  units_.resize(size / sizeof(uint32_t));
  std::memcpy(units_.data(), map.data() + sizeof(size), size);
  targets_ = map.substr(sizeof(size) + size);
  return absl::OkStatus();
}

size_t SentencePieceNormalizer::LongestRule(absl::string_view rest,
                                            absl::string_view* to) const {
  if (units_.empty()) return 0;
  size_t longest = 0;
  size_t node = Offset(units_[0]);
  for (size_t i = 0; i < rest.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(rest[i]);
    node ^= byte;
    if (node >= units_.size() || Label(units_[node]) != byte) break;
    const bool has_leaf = HasLeaf(units_[node]);
    node ^= Offset(units_[node]);
    if (!has_leaf || node >= units_.size()) continue;
    const uint32_t target = Value(units_[node]);
    if (target >= targets_.size()) continue;
    longest = i + 1;
    *to = targets_.substr(target, targets_.find('\0', target) - target);
  }
  return longest;
}

absl::string_view SentencePieceNormalizer::Prefix(absl::string_view rest,
                                                  size_t* size) const {
  int32_t id = 0;
  *size = model_->user_defined.LongestPrefix(rest, &id);
  if (*size > 0) return rest.substr(0, *size);
  absl::string_view to;
  *size = LongestRule(rest, &to);
  if (*size > 0) return to;
  char32_t code = 0;
  *size = DecodeCharacter(rest, &code);
  if (*size > 0) return rest.substr(0, *size);
  *size = 1;
  return kReplacement;
}

std::string SentencePieceNormalizer::Normalize(absl::string_view text) const {
  const absl::string_view space =
      model_->escape_whitespaces ? kSpaceSymbol : absl::string_view(" ");
  const bool trim = model_->remove_extra_whitespaces;
  size_t size = 0;
  while (trim && !text.empty() && Prefix(text, &size) == " ") {
    text.remove_prefix(size);
  }
  if (text.empty()) return "";
  std::string out;
  const bool suffix = model_->whitespace_as_suffix;
  if (model_->add_dummy_prefix && !suffix) absl::StrAppend(&out, space);
  bool after_space = trim;
  for (; !text.empty(); text.remove_prefix(size)) {
    absl::string_view part = Prefix(text, &size);
    while (after_space && absl::ConsumePrefix(&part, " ")) {
    }
    if (part.empty()) continue;
    after_space = trim && absl::EndsWith(part, " ");
    for (char c : part) {
      absl::StrAppend(&out, c == ' ' ? space : absl::string_view(&c, 1));
    }
  }
  while (trim && absl::EndsWith(out, space)) {
    out.erase(out.size() - space.size());
  }
  if (model_->add_dummy_prefix && suffix) absl::StrAppend(&out, space);
  return out;
}

}  // namespace recurve
