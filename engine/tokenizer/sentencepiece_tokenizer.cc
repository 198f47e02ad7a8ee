#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/tokenizer/sentencepiece_encoder.h"

namespace recurve {
namespace {

using Model = SentencePieceModel;
using Type = SentencePieceModel::Type;

// The decoded form of a piece inside a text.
std::string TextOf(const Model& model, const Model::Piece& piece) {
  switch (piece.type) {
    case Type::kControl:
    case Type::kByte:  // filled in later from the byte's number
      return "";
    case Type::kUnknown:
      return model.unk_surface;
    default:
      return absl::StrReplaceAll(piece.text, {{kSpaceSymbol, " "}});
  }
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(
    int32_t vocab_size, std::optional<int32_t> bos_id,
    std::unique_ptr<const SentencePieceModel> model,
    SentencePieceNormalizer normalizer)
    : Tokenizer(vocab_size, bos_id),
      model_(std::move(model)),
      normalizer_(std::move(normalizer)) {
  RECURVE_CHECK(model_->pieces.size() <= static_cast<size_t>(vocab_size));
  texts_.resize(static_cast<size_t>(vocab_size));
  for (size_t id = 0; id < model_->pieces.size(); ++id) {
    texts_[id] = TextOf(*model_, model_->pieces[id]);
    longest_piece_ = std::max(longest_piece_, model_->pieces[id].text.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = model_->byte_ids[byte];
    if (id >= 0) texts_[id] = std::string(1, static_cast<char>(byte));
  }
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(
    absl::string_view text, bool add_bos, int64_t max_ids) const {
  constexpr size_t kMaxBytes = size_t{1} << 28;
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text holds ", text.size(),
                     " bytes; expected at most ", kMaxBytes));
  }
  std::vector<int32_t> ids;
  if (add_bos) {
    if (!bos_id().has_value()) {
      return absl::InvalidArgumentError(
          "the model has no beginning-of-sequence token to add");
    }
    ids.push_back(*bos_id());
  }
  const std::string normalized = normalizer_.Normalize(text);
  if (HasMoreIds(normalized, max_ids - static_cast<int64_t>(ids.size()))) {
    return absl::OutOfRangeError(
        absl::StrCat("has more than ", max_ids, " tokens"));
  }
  const std::vector<SentencePiecePart> parts =
      model_->algorithm == Model::Algorithm::kBpe
          ? EncodeSentencePieceBpe(*model_, normalized)
          : EncodeSentencePieceUnigram(*model_, normalized);
  bool after_unknown = false;
  for (const SentencePiecePart& part : parts) {
    const bool unknown = part.id == model_->unk_id;
    if (unknown && model_->byte_fallback) {
      for (char c : part.text) {
        ids.push_back(model_->byte_ids[static_cast<uint8_t>(c)]);
      }
    } else if (!unknown || !after_unknown) {  // one for a run of them
      ids.push_back(part.id);
    }
    after_unknown = unknown;
  }
  if (static_cast<int64_t>(ids.size()) > max_ids) {
    return absl::OutOfRangeError(absl::StrCat("has ", ids.size(), " tokens"));
  }
  return ids;
}

bool SentencePieceTokenizer::HasMoreIds(absl::string_view normalized,
                                        int64_t max_ids) const {
  if (max_ids < 0) return true;
  const auto has_more = [&](size_t bytes) {
    const size_t fewest = (bytes + longest_piece_ - 1) / longest_piece_;
    return static_cast<int64_t>(fewest) > max_ids;
  };
  if (!has_more(normalized.size())) return false;
  // Without byte fallback any run of unknown characters is one id.
  return model_->byte_fallback ||
         has_more(KnownSentencePieceBytes(*model_, normalized));
}

absl::string_view SentencePieceTokenizer::TokenBytes(int32_t id) const {
  RECURVE_CHECK(id >= 0 && id < vocab_size());
  return texts_[static_cast<size_t>(id)];
}

absl::string_view SentencePieceTokenizer::FirstTokenBytes(
    int32_t id, bool* at_start) const {
  absl::string_view text = TokenBytes(id);
  const bool strips =
      model_->add_dummy_prefix || model_->remove_extra_whitespaces;
  const bool has_space =
      strips && model_->IsWord(id) &&
      absl::StartsWith(model_->pieces[id].text, kSpaceSymbol);
  if (has_space) text.remove_prefix(1);
  // A dropped space still counts as the beginning of the text, unless all
  // leading spaces are dropped.
  *at_start = text.empty() && (!has_space || model_->remove_extra_whitespaces);
  return text;
}

absl::string_view SentencePieceTokenizer::SpecialText(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (index >= model_->pieces.size()) return "";  // padding
  const Model::Piece& piece = model_->pieces[index];
  return piece.type == Type::kControl ? absl::string_view(piece.text) : "";
}

std::optional<int32_t> SentencePieceTokenizer::FindToken(
    absl::string_view token) const {
  for (size_t id = 0; id < model_->pieces.size(); ++id) {
    const Model::Piece& piece = model_->pieces[id];
    if (piece.text == token && piece.type != Type::kUnknown) {
      return static_cast<int32_t>(id);
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadSentencePiece(
    const std::string& file, absl::string_view bytes, int32_t vocab_size,
    std::optional<int32_t> bos_id) {
  RECURVE_ASSIGN_OR_RETURN(Model parsed, ParseSentencePieceModel(file, bytes));
  const auto num_pieces = static_cast<int64_t>(parsed.pieces.size());
  if (num_pieces > vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", num_pieces,
        " pieces; expected at most the model's vocab_size of ", vocab_size));
  }
  auto model = std::make_unique<const Model>(std::move(parsed));
  SentencePieceNormalizer normalizer(model.get());
  const absl::Status status = normalizer.Init();
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", status.message()));
  }
  return std::make_unique<SentencePieceTokenizer>(
      vocab_size, bos_id, std::move(model), std::move(normalizer));
}

}  // namespace recurve
