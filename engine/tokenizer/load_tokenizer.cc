#include "engine/tokenizer/load_tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/mapped_file.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/bytes_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace recurve {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

// `files` are in the order of their row.
using ReadFunction = absl::StatusOr<std::unique_ptr<Tokenizer>> (*)(
    const std::vector<NamedText>& files, const TokenizerChoice& choice);

// A kind and its files, in order of preference.
struct Row {
  absl::string_view kind;
  std::vector<std::string> files;
  ReadFunction read;
};

const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {kHuggingFaceKind,
       {"tokenizer.json"},
       [](const auto& files, const TokenizerChoice& choice) {
         return ReadTokenizerJson(files[0].file, files[0].text,
                                  choice.vocab_size,
                                  {choice.add_bos, choice.bos_token});
       }},
      {kSentencePieceKind,
       {"tokenizer.model"},
       [](const auto& files, const TokenizerChoice& choice) {
         return ReadSentencePiece(
             files[0].file, files[0].text, choice.vocab_size,
             choice.add_bos.value_or(true) ? choice.bos : std::nullopt);
       }},
      {kGpt2Kind,
       {"vocab.json", "merges.txt"},
       [](const auto& files, const TokenizerChoice& choice) {
         return ReadGpt2Files(files[0], files[1], choice.vocab_size);
       }},
      {kTiktokenKind,
       {"gpt2.tiktoken"},
       [](const auto& files, const TokenizerChoice& choice) {
         return ReadTiktokenRanks(files[0], choice.vocab_size,
                                  choice.num_ranks);
       }},
      {kTiktokenKind,
       {"r50k_base.tiktoken"},
       [](const auto& files, const TokenizerChoice& choice) {
         return ReadTiktokenRanks(files[0], choice.vocab_size,
                                  choice.num_ranks);
       }},
  };
  return *rows;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Read(const std::string& dir,
                                                const Row& row,
                                                const TokenizerChoice& choice) {
  std::vector<MappedFile> files;
  std::vector<NamedText> texts;
  for (const std::string& name : row.files) {
    const std::string path = absl::StrCat(dir, "/", name);
    RECURVE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    const auto size = static_cast<int64_t>(file.bytes().size());
    if (size > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " holds ", size, " bytes; expected at most ", kMaxFileBytes));
    }
    RECURVE_RETURN_IF_ERROR(CheckNotLfsPointer(path, file.bytes()));
    texts.push_back({path, file.bytes()});
    files.push_back(std::move(file));
  }
  return row.read(texts, choice);
}

absl::StatusOr<bool> HasFiles(const std::string& dir, const Row& row) {
  for (const std::string& name : row.files) {
    RECURVE_ASSIGN_OR_RETURN(const bool exists,
                             FileExists(absl::StrCat(dir, "/", name)));
    if (!exists) return false;
  }
  return true;
}

// A rank file of another name may be of another encoding, whose pattern is not
// in the file.
absl::Status CheckNoOtherRanks(const std::string& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::EndsWith(name, ".tiktoken")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(dir, " has the rank file ", Quote(name),
                     "; supported: gpt2.tiktoken, r50k_base.tiktoken"));
  }
  return absl::OkStatus();
}

// Refuses one file of GPT-2's pair, or the pair under OpenAI's original names:
// a tokenizer that would otherwise be ignored.
absl::Status CheckNoHalfPair(const std::string& dir) {
  static constexpr std::pair<const char*, const char*> kFiles[] = {
      {"vocab.json", "merges.txt next to it"},
      {"merges.txt", "vocab.json next to it"},
      {"encoder.json", "the name vocab.json, and merges.txt next to it"},
      {"vocab.bpe", "the name merges.txt, and vocab.json next to it"}};
  for (const auto& [name, expected] : kFiles) {
    RECURVE_ASSIGN_OR_RETURN(const bool exists,
                             FileExists(absl::StrCat(dir, "/", name)));
    if (!exists) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        dir, " has ", name, " and no whole tokenizer; expected ", expected));
  }
  return absl::OkStatus();
}

absl::Status UnknownKind(const TokenizerChoice& choice) {
  std::string supported(BytesTokenizer::kName);
  for (const Row& row : Rows()) {
    if (!absl::EndsWith(supported, row.kind)) {
      absl::StrAppend(&supported, ", ", row.kind);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(choice.kind_name, " is ",
                                                 Quote(choice.kind),
                                                 "; supported: ", supported));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBytes(
    const std::string& dir, const TokenizerChoice& choice) {
  const std::string config = absl::StrCat(dir, "/config.json");
  return BytesTokenizer::Make(
      choice.vocab_size, choice.bos, choice.eos,
      {absl::StrCat(config, ": vocab_size"),
       absl::StrCat(config, ": bos_token_id"),
       absl::StrCat(choice.eos_file.empty() ? config : choice.eos_file,
                    ": eos_token_id")});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& dir, const TokenizerChoice& choice) {
  const std::string& kind = choice.kind;
  if (kind == BytesTokenizer::kName) return MakeBytes(dir, choice);
  const Row* missing = nullptr;
  for (const Row& row : Rows()) {
    if (!kind.empty() && kind != row.kind) continue;
    RECURVE_ASSIGN_OR_RETURN(const bool found, HasFiles(dir, row));
    if (found) return Read(dir, row, choice);
    if (missing == nullptr) missing = &row;
  }
  if (kind.empty()) {
    RECURVE_RETURN_IF_ERROR(CheckNoOtherRanks(dir));
    RECURVE_RETURN_IF_ERROR(CheckNoHalfPair(dir));
    return nullptr;
  }
  if (missing == nullptr) return UnknownKind(choice);
  return Read(dir, *missing, choice);  // the error names the missing file
}

}  // namespace recurve
