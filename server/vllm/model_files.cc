#include "server/vllm/model_files.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"
#include "server/vllm/zip_archive.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;

// By name, or by ending. Only with one of the first list or ending can a caller
// make ids.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "vocab.json"};
constexpr const char* kTokenizerEndings[] = {".model", ".tiktoken"};
constexpr const char* kOtherFiles[] = {
    "added_tokens.json",      "chat_template.json", "config.json",
    "generation_config.json", "merges.txt",         "special_tokens_map.json",
    "tokenizer_config.json",  "vocab.txt"};
constexpr char kTemplateEnding[] = ".jinja";

bool IsTokenizer(const std::string& name) {
  for (const char* const file : kTokenizerFiles) {
    if (name == file) return true;
  }
  for (const char* const ending : kTokenizerEndings) {
    if (absl::EndsWith(name, ending)) return true;
  }
  return false;
}

bool IsWanted(const std::string& name) {
  return IsTokenizer(name) || absl::EndsWith(name, kTemplateEnding) ||
         std::any_of(std::begin(kOtherFiles), std::end(kOtherFiles),
                     [&](const char* file) { return name == file; });
}

absl::StatusOr<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  if (in.peek() != std::ifstream::traits_type::eof()) bytes << in.rdbuf();
  if (in.bad() || !bytes || !in.is_open()) {
    return absl::UnavailableError(
        absl::StrCat(Quote(path.filename().string()), " cannot be read"));
  }
  return std::move(bytes).str();
}

// The names of the wanted files, in order.
absl::StatusOr<std::set<std::string>> WantedFiles(const fs::path& folder) {
  std::set<std::string> names;
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code skip;
    if (!IsWanted(name) || !it->is_regular_file(skip)) continue;
    names.insert(name);
    bytes += static_cast<int64_t>(it->file_size(skip));
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "the folder of the model cannot be read: ", error.message()));
  }
  if (std::none_of(names.begin(), names.end(), IsTokenizer)) {
    return absl::NotFoundError(
        "the model has no file of a tokenizer: tokenizer.json, vocab.json, "
        "*.model or *.tiktoken");
  }
  if (bytes < 0 || bytes > kMaxTokenizerArchiveBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the tokenizer's files have ", bytes,
                     " bytes; expected at most ", kMaxTokenizerArchiveBytes));
  }
  return names;
}

absl::StatusOr<std::shared_ptr<const ModelFiles::Archive>> MakeArchive(
    const fs::path& folder) {
  RECURVE_ASSIGN_OR_RETURN(const std::set<std::string> names,
                           WantedFiles(folder));
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& name : names) {
    RECURVE_ASSIGN_OR_RETURN(std::string bytes, ReadFile(folder / name));
    files.emplace_back(name, std::move(bytes));
  }
  auto archive = std::make_shared<ModelFiles::Archive>();
  archive->zip = ZipOf(files);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(archive->zip.data()),
         archive->zip.size(), digest.data());
  archive->sha256 = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
  return archive;
}

}  // namespace

ModelFiles ReadModelFiles(const std::string& folder) {
  ModelFiles files;
  files.tokenizer = MakeArchive(folder);
  const absl::StatusOr<std::string> text =
      ReadFile(fs::path(folder) / "config.json");
  if (!text.ok()) return files;
  const auto config = nlohmann::json::parse(*text, nullptr,
                                            /*allow_exceptions=*/false);
  if (!config.is_object()) return files;
  if (const auto it = config.find("model_type");
      it != config.end() && it->is_string()) {
    files.model_type = it->get<std::string>();
  }
  if (const auto it = config.find("architectures");
      it != config.end() && it->is_array()) {
    for (const auto& name : *it) {
      if (name.is_string()) {
        files.architectures.push_back(name.get<std::string>());
      }
    }
  }
  if (const auto it = config.find("pad_token_id");
      it != config.end() && it->is_number_unsigned() &&
      it->get<uint64_t>() <= std::numeric_limits<int32_t>::max()) {
    files.pad_token_id = it->get<int32_t>();
  }
  return files;
}

}  // namespace recurve
