#include "engine/tokenizer/byte_vocabulary.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/byte_level.h"

namespace recurve {

std::optional<std::string> ByteVocabulary::Bytes(
    absl::string_view token) const {
  return spelling_ == Spelling::kByteLevel ? BytesOfToken(token)
                                           : std::string(token);
}

absl::Status ByteVocabulary::AddUnreachable(std::string bytes, int64_t id) {
  if (id < 0 || id >= vocab_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", id, "; expected 0 to ", vocab_size_ - 1,
                     ", as the model's vocab_size is ", vocab_size_));
  }
  if (Has(id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", id, ", which is another token already"));
  }
  if (id >= static_cast<int64_t>(tokens_.size())) {
    tokens_.resize(static_cast<size_t>(id) + 1);
    taken_.resize(static_cast<size_t>(id) + 1);
  }
  tokens_[static_cast<size_t>(id)] = std::move(bytes);
  taken_[static_cast<size_t>(id)] = true;
  return absl::OkStatus();
}

absl::Status ByteVocabulary::AddBytes(const std::string& bytes, int64_t id) {
  RECURVE_RETURN_IF_ERROR(AddUnreachable(bytes, id));
  if (!vocabulary_.try_emplace(bytes, static_cast<int32_t>(id)).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", id, ", and an earlier token has the same bytes"));
  }
  return absl::OkStatus();
}

absl::Status ByteVocabulary::AddToken(absl::string_view token, int64_t id) {
  std::optional<std::string> bytes = Bytes(token);
  return bytes.has_value() ? AddBytes(*bytes, id)
                           : AddUnreachable(std::string(token), id);
}

std::optional<int32_t> ByteVocabulary::Find(absl::string_view token) const {
  const std::optional<std::string> bytes = Bytes(token);
  if (!bytes.has_value()) return std::nullopt;
  const auto found = vocabulary_.find(*bytes);
  if (found == vocabulary_.end()) return std::nullopt;
  return found->second;
}

absl::Status ByteVocabulary::AddMerge(absl::string_view left,
                                      absl::string_view right) {
  const std::optional<int32_t> left_id = Find(left);
  const std::optional<int32_t> right_id = Find(right);
  const std::optional<int32_t> id = Find(absl::StrCat(left, right));
  if (!left_id || !right_id || !id) {
    return absl::InvalidArgumentError(absl::StrCat(
        "joins ", Quote(left), " and ", Quote(right), "; expected two ",
        spelling_ == Spelling::kByteLevel ? "byte-level tokens" : "tokens",
        " of the vocabulary that are one together"));
  }
  // The last of duplicate pairs counts, as in the reference.
  merges_[Bpe::PairKey(*left_id, *right_id)] = {next_rank_++, *id};
  return absl::OkStatus();
}

std::optional<int> ByteVocabulary::MissingByte() const {
  for (int byte = 0; byte < 256; ++byte) {
    if (!vocabulary_.contains(std::string(1, static_cast<char>(byte)))) {
      return byte;
    }
  }
  return std::nullopt;
}

ByteVocabulary::Merged ByteVocabulary::CountMerged() const {
  std::vector<bool> made(tokens_.size());
  for (const auto& merge : merges_) {
    made[static_cast<size_t>(merge.second.id)] = true;
  }
  // Whether it is the concatenation of two tokens, as every merged token is.
  const auto is_two = [&](absl::string_view bytes) {
    for (size_t i = 1; i < bytes.size(); ++i) {
      if (vocabulary_.contains(bytes.substr(0, i)) &&
          vocabulary_.contains(bytes.substr(i))) {
        return true;
      }
    }
    return false;
  };
  Merged merged;
  for (const auto& [bytes, id] : vocabulary_) {
    if (bytes.size() < 2) continue;
    if (made[static_cast<size_t>(id)]) {
      ++merged.wanted;
      ++merged.made;
      continue;
    }
    const bool special =
        absl::StartsWith(bytes, "<") && absl::EndsWith(bytes, ">");
    if (special || !is_two(bytes)) continue;
    ++merged.wanted;
    if (id < merged.first_missing.value_or(id + 1)) merged.first_missing = id;
  }
  return merged;
}

}  // namespace recurve
