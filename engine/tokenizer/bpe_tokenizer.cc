#include "engine/tokenizer/bpe_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

// Positions in a text are 32-bit.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

absl::Status CheckSize(absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the text holds ", text.size(),
                                                 " bytes; expected at most ",
                                                 kMaxTextBytes));
}

}  // namespace

BpeTokenizer::BpeTokenizer(int32_t vocab_size, Parts parts)
    : Tokenizer(vocab_size, parts.bos_id),
      name_(std::move(parts.name)),
      tokens_(std::move(parts.tokens)),
      bpe_(std::move(parts.bpe)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      normalizer_(std::move(parts.normalizer)),
      byte_tokens_(std::move(parts.byte_tokens)),
      first_texts_(std::move(parts.first_texts)),
      strip_(std::move(parts.strip)) {
  RECURVE_CHECK(tokens_.size() <= static_cast<size_t>(vocab_size));
  tokens_.resize(static_cast<size_t>(vocab_size));
  // If two tokens have the same text, the special one counts.
  for (bool special : {true, false}) {
    for (AddedToken& token : parts.added_tokens) {
      if (token.special != special) continue;
      added_ids_.emplace(token.content, token.id);
      if (special) special_texts_.emplace(token.id, token.content);
      if (token.normalized) {
        token.content = normalizer_.Normalize(token.content);
      }
      (token.normalized ? normalized_added_ : raw_added_).Add(token);
    }
  }
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(
    absl::string_view text, bool add_bos, int64_t max_ids) const {
  RECURVE_RETURN_IF_ERROR(CheckSize(text));
  std::vector<int32_t> ids;
  if (add_bos) {
    if (!bos_id().has_value()) {
      return absl::InvalidArgumentError(
          "the tokenizer adds no beginning-of-sequence token");
    }
    ids.push_back(*bos_id());
  }
  // Added tokens and words have at least one id each: if some of them are
  // skipped, there are too many ids without them.
  const auto max_pieces = static_cast<size_t>(max_ids);
  for (const AddedTokens::Span& span : raw_added_.Find(text, max_pieces)) {
    const bool is_first = span.text.data() == text.data();
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else if (normalizer_.empty()) {
      RECURVE_RETURN_IF_ERROR(
          EncodeNormalized(span.text, is_first, max_ids, &ids));
    } else {
      const std::string normalized = normalizer_.Normalize(span.text);
      RECURVE_RETURN_IF_ERROR(CheckSize(normalized));
      RECURVE_RETURN_IF_ERROR(
          EncodeNormalized(normalized, is_first, max_ids, &ids));
    }
  }
  RECURVE_RETURN_IF_ERROR(CheckRoom(0, max_ids, ids));
  return ids;
}

absl::Status BpeTokenizer::EncodeNormalized(absl::string_view text,
                                            bool is_first, int64_t max_ids,
                                            std::vector<int32_t>* ids) const {
  const bool drops_text = pre_tokenizer_.drops_text();
  const auto max_pieces = static_cast<size_t>(max_ids);
  for (const AddedTokens::Span& span :
       normalized_added_.Find(text, max_pieces)) {
    if (span.id >= 0) {
      ids->push_back(span.id);
      continue;
    }
    RECURVE_RETURN_IF_ERROR(
        CheckRoom(drops_text ? 0 : span.text.size(), max_ids, *ids));
    RECURVE_RETURN_IF_ERROR(pre_tokenizer_.ForEachWord(
        span.text, is_first && span.text.data() == text.data(), max_pieces,
        [&](absl::string_view word) {
          const absl::Status room = CheckRoom(word.size(), max_ids, *ids);
          return room.ok() ? bpe_.Encode(word, ids) : room;
        }));
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::CheckRoom(size_t bytes, int64_t max_ids,
                                     const std::vector<int32_t>& ids) const {
  const size_t per_id = bpe_.max_bytes_per_id();
  const size_t fewest = bytes / per_id + (bytes % per_id > 0 ? 1 : 0);
  if (static_cast<int64_t>(ids.size() + fewest) <= max_ids) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      absl::StrCat("has more than ", max_ids, " tokens"));
}

absl::string_view BpeTokenizer::TokenBytes(int32_t id) const {
  RECURVE_CHECK(id >= 0 && id < vocab_size());
  return tokens_[static_cast<size_t>(id)];
}

absl::string_view BpeTokenizer::FirstTokenBytes(int32_t id,
                                                bool* at_start) const {
  const absl::string_view bytes = TokenBytes(id);
  *at_start = bytes.empty();
  if (bytes.empty() || IsByteOfRun(id)) return bytes;
  const auto first = first_texts_.find(id);
  return first != first_texts_.end() ? absl::string_view(first->second)
                                     : FirstRun(bytes);
}

absl::string_view BpeTokenizer::SpecialText(int32_t id) const {
  const auto found = special_texts_.find(id);
  return found != special_texts_.end() ? absl::string_view(found->second) : "";
}

bool BpeTokenizer::IsByteOfRun(int32_t id) const {
  return static_cast<size_t>(id) < byte_tokens_.size() &&
         byte_tokens_[static_cast<size_t>(id)];
}

absl::string_view BpeTokenizer::FirstRun(absl::string_view text) const {
  return absl::StripPrefix(text, strip_);
}

std::optional<int32_t> BpeTokenizer::FindToken(absl::string_view token) const {
  const auto added = added_ids_.find(token);
  if (added != added_ids_.end()) return added->second;
  // Padding of the vocabulary has no text; a token has. The byte token <0x61>
  // is no token "a".
  if (token.empty()) return std::nullopt;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (TokenBytes(id) == token && !IsByteOfRun(id)) return id;
  }
  return std::nullopt;
}

}  // namespace recurve
