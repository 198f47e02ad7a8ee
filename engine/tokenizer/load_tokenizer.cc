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
#include "engine/tokenizer/gpt2_files.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace recurve {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

struct Model {
  int32_t vocab_size;
  std::optional<int32_t> bos;
};

// `files` in the order of the row that named them.
using ReadFunction = absl::StatusOr<std::unique_ptr<Tokenizer>> (*)(
    const std::vector<NamedText>& files, const Model& model);

// A kind, and the files that it is read from. In the order of preference.
struct Row {
  absl::string_view kind;
  std::vector<std::string> files;
  ReadFunction read;
};

const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {kHuggingFaceKind,
       {"tokenizer.json"},
       [](const auto& files, const Model& model) {
         return ReadTokenizerJson(files[0].file, files[0].text,
                                  model.vocab_size);
       }},
      {kSentencePieceKind,
       {"tokenizer.model"},
       [](const auto& files, const Model& model) {
         return ReadSentencePiece(files[0].file, files[0].text,
                                  model.vocab_size, model.bos);
       }},
      {kGpt2Kind,
       {"vocab.json", "merges.txt"},
       [](const auto& files, const Model& model) {
         return ReadGpt2Files(files[0], files[1], model.vocab_size);
       }},
      {kTiktokenKind,
       {"gpt2.tiktoken"},
       [](const auto& files, const Model& model) {
         return ReadTiktokenRanks(files[0], model.vocab_size);
       }},
      {kTiktokenKind,
       {"r50k_base.tiktoken"},
       [](const auto& files, const Model& model) {
         return ReadTiktokenRanks(files[0], model.vocab_size);
       }},
  };
  return *rows;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Read(const std::string& dir,
                                                const Row& row,
                                                const Model& model) {
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
  return row.read(texts, model);
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

absl::Status UnknownKind(absl::string_view kind) {
  std::string supported(BytesTokenizer::kName);
  for (const Row& row : Rows()) {
    if (!absl::EndsWith(supported, row.kind)) {
      absl::StrAppend(&supported, ", ", row.kind);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer is ", Quote(kind), "; supported: ", supported));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& dir, absl::string_view kind, int32_t vocab_size,
    std::optional<int32_t> bos, std::optional<int32_t> eos) {
  if (kind == BytesTokenizer::kName) {
    return BytesTokenizer::Make(vocab_size, bos, eos);
  }
  const Model model{vocab_size, bos};
  const Row* missing = nullptr;
  for (const Row& row : Rows()) {
    if (!kind.empty() && kind != row.kind) continue;
    RECURVE_ASSIGN_OR_RETURN(const bool found, HasFiles(dir, row));
    if (found) return Read(dir, row, model);
    if (missing == nullptr) missing = &row;
  }
  if (kind.empty()) {
    RECURVE_RETURN_IF_ERROR(CheckNoOtherRanks(dir));
    return nullptr;
  }
  if (missing == nullptr) return UnknownKind(kind);
  return Read(dir, *missing, model);  // says which file is not there
}

}  // namespace recurve
