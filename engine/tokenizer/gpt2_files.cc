#include "engine/tokenizer/gpt2_files.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/byte_vocabulary.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

constexpr absl::string_view kEndOfText = "<|endoftext|>";

absl::Status At(absl::string_view place, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(place, " ", problem));
}

absl::Status AtLine(const std::string& file, size_t line,
                    absl::string_view problem) {
  return At(absl::StrCat(file, ": line ", line), problem);
}

absl::Status ReadVocabulary(const NamedText& file, ByteVocabulary* vocabulary) {
  RECURVE_ASSIGN_OR_RETURN(const nlohmann::json root,
                           ParseJson(file.text, file.file, /*max_depth=*/2));
  if (!root.is_object()) {
    return At(absl::StrCat(file.file, ":"),
              absl::StrCat("the top level is ", DescribeJson(root),
                           "; expected an object of token ids"));
  }
  for (const auto& item : root.items()) {
    const std::string place = absl::StrCat(file.file, ": ", Quote(item.key()));
    int64_t id = 0;
    if (!ReadInt(item.value(), &id)) {
      return At(place, absl::StrCat("is ", DescribeJson(item.value()),
                                    "; expected a token id"));
    }
    const absl::Status added = vocabulary->AddToken(item.key(), id);
    if (!added.ok()) return At(place, added.message());
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const NamedText& file, ByteVocabulary* vocabulary) {
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(file.text, '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    if (line.empty() || absl::StartsWith(line, "#version")) continue;
    const size_t space = line.find(' ');
    if (space == absl::string_view::npos) {
      return AtLine(file.file, number,
                    absl::StrCat("is ", Quote(line),
                                 "; expected two tokens and a space between"));
    }
    const absl::Status added =
        vocabulary->AddMerge(line.substr(0, space), line.substr(space + 1));
    if (!added.ok()) return AtLine(file.file, number, added.message());
  }
  return absl::OkStatus();
}

// A truncated file, e.g. of an incomplete download, would tokenize most words
// differently.
absl::Status CheckMergesMakeAll(const NamedText& vocab, const NamedText& merges,
                                const ByteVocabulary& vocabulary) {
  const ByteVocabulary::Merged merged = vocabulary.CountMerged();
  if (!merged.first_missing.has_value()) return absl::OkStatus();
  const int32_t id = *merged.first_missing;
  return At(
      absl::StrCat(merges.file, ":"),
      absl::StrCat("the merges make ", merged.made, " of the ", merged.wanted,
                   " tokens of several bytes in ", vocab.file,
                   "; expected all of them: ", Quote(vocabulary.BytesOf(id)),
                   ", with the id ", id, ", is the first that is missing"));
}

// As above, for ranks: all must be present, and <|endoftext|> follows.
absl::Status CheckRanksAreAll(const NamedText& file, int64_t num_ranks,
                              int64_t expected,
                              const ByteVocabulary& vocabulary) {
  const std::string place = absl::StrCat(file.file, ":");
  if (num_ranks != expected) {
    return At(place, absl::StrCat("holds ", num_ranks, " ranks; expected ",
                                  expected, ", as GPT-2 has"));
  }
  const std::optional<int> missing = vocabulary.MissingByte();
  if (!missing.has_value()) return absl::OkStatus();
  return At(place, absl::StrCat("holds no rank of the byte ", *missing,
                                "; expected one of each of the 256 bytes"));
}

absl::Status ReadRanks(const NamedText& file, int64_t num_ranks,
                       ByteVocabulary* vocabulary) {
  size_t number = 0;
  int64_t expected = 0;
  for (absl::string_view line : absl::StrSplit(file.text, '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    std::string bytes;
    int64_t rank = -1;
    if (space == absl::string_view::npos ||
        !absl::Base64Unescape(line.substr(0, space), &bytes) || bytes.empty() ||
        !absl::SimpleAtoi(line.substr(space + 1), &rank)) {
      return AtLine(file.file, number,
                    absl::StrCat("is ", Quote(line),
                                 "; expected a token in base64, a space and "
                                 "its rank"));
    }
    if (rank != expected++) {
      return AtLine(
          file.file, number,
          absl::StrCat("has the rank ", rank, "; expected ", expected - 1,
                       ", as GPT-2's ranks have no gaps"));
    }
    const absl::Status added = vocabulary->AddBytes(bytes, rank);
    if (!added.ok()) {
      return AtLine(file.file, number,
                    absl::StrCat("has a rank that ", added.message()));
    }
  }
  RECURVE_RETURN_IF_ERROR(
      CheckRanksAreAll(file, expected, num_ranks, *vocabulary));
  const absl::Status added = vocabulary->AddUnreachable("", expected);
  if (added.ok()) return absl::OkStatus();
  return At(absl::StrCat(file.file, ": the id of ", kEndOfText),
            added.message());
}

// `merges` false: by rank.
absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
    const char* kind, int32_t vocab_size, ByteVocabulary* vocabulary,
    bool merges, std::optional<int32_t> end_of_text) {
  std::vector<AddedToken> added_tokens;
  if (end_of_text.has_value()) {
    vocabulary->ClearText(*end_of_text);
    AddedToken token;
    token.id = *end_of_text;
    token.content = std::string(kEndOfText);
    token.special = true;
    added_tokens.push_back(std::move(token));
  }
  RECURVE_ASSIGN_OR_RETURN(SplitPattern pattern,
                           SplitPattern::Make(kGpt2Pattern));
  std::vector<PreTokenizer::Step> steps;
  steps.push_back({std::move(pattern), false, std::nullopt});
  std::optional<Bpe::Merges> merge_table;
  Bpe::Options options;
  if (merges) {
    merge_table = vocabulary->TakeMerges();
  } else {
    options.ignore_merges = true;  // as tiktoken, which first looks up the
                                   // whole word
  }
  std::vector<std::string> tokens = vocabulary->TakeTokens();
  return std::make_unique<BpeTokenizer>(
      vocab_size,
      BpeTokenizer::Parts{
          kind, std::move(tokens),
          Bpe(vocabulary->TakeVocabulary(), std::move(merge_table), options),
          PreTokenizer(std::move(steps)), std::move(added_tokens)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadGpt2Files(
    const NamedText& vocab, const NamedText& merges, int32_t vocab_size) {
  ByteVocabulary vocabulary(vocab_size);
  RECURVE_RETURN_IF_ERROR(ReadVocabulary(vocab, &vocabulary));
  RECURVE_RETURN_IF_ERROR(ReadMerges(merges, &vocabulary));
  RECURVE_RETURN_IF_ERROR(CheckMergesMakeAll(vocab, merges, vocabulary));
  const std::optional<int32_t> end_of_text = vocabulary.Find(kEndOfText);
  return Make(kGpt2Kind, vocab_size, &vocabulary, /*merges=*/true, end_of_text);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTiktokenRanks(
    const NamedText& ranks, int32_t vocab_size, int64_t num_ranks) {
  ByteVocabulary vocabulary(vocab_size);
  RECURVE_RETURN_IF_ERROR(ReadRanks(ranks, num_ranks, &vocabulary));
  const auto end_of_text = static_cast<int32_t>(vocabulary.num_ids() - 1);
  return Make(kTiktokenKind, vocab_size, &vocabulary, /*merges=*/false,
              end_of_text);
}

}  // namespace recurve
