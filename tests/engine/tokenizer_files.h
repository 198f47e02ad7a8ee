#ifndef RECURVE_TESTS_ENGINE_TOKENIZER_FILES_H_
#define RECURVE_TESTS_ENGINE_TOKENIZER_FILES_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/load_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace recurve {

// A vocabulary large enough for every tokenizer in tests/golden/tokenizer.
constexpr int32_t kGoldenVocabSize = 1600;
// Ranks in gpt2/gpt2.tiktoken there.
constexpr int64_t kGoldenNumRanks = 1500;

inline std::string GoldenPath(absl::string_view name) {
  return absl::StrCat(RECURVE_SOURCE_DIR, "/tests/golden/tokenizer/", name);
}

inline std::string ReadGolden(absl::string_view name) {
  std::ifstream file(GoldenPath(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::vector<int32_t> ReadGoldenIds(absl::string_view name) {
  std::stringstream text(ReadGolden(name));
  std::vector<int32_t> ids;
  for (int32_t id = 0; text >> id;) ids.push_back(id);
  return ids;
}

// The tokenizer of a folder in tests/golden/tokenizer.
inline std::unique_ptr<Tokenizer> LoadGolden(absl::string_view folder,
                                             absl::string_view kind = "") {
  TokenizerChoice choice;
  choice.kind = std::string(kind);
  choice.vocab_size = kGoldenVocabSize;
  choice.num_ranks = kGoldenNumRanks;
  auto loaded = LoadTokenizer(GoldenPath(folder), choice);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? std::move(*loaded) : nullptr;
}

// The bytes of the ids, each token decoded separately.
inline std::string JoinTokens(const Tokenizer& tokenizer,
                              const std::vector<int32_t>& ids) {
  std::string bytes;
  for (int32_t id : ids) absl::StrAppend(&bytes, tokenizer.TokenBytes(id));
  return bytes;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_ENGINE_TOKENIZER_FILES_H_
