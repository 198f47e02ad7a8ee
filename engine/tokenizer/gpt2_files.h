#ifndef RECURVE_ENGINE_TOKENIZER_GPT2_FILES_H_
#define RECURVE_ENGINE_TOKENIZER_GPT2_FILES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

constexpr char kGpt2Kind[] = "gpt2";
constexpr char kTiktokenKind[] = "tiktoken";

// Ranks of GPT-2's encoding, without <|endoftext|>.
constexpr int64_t kGpt2NumRanks = 50256;

// A file's name, for errors, and its contents.
struct NamedText {
  std::string file;
  absl::string_view text;
};

// GPT-2's own pair of files, vocab.json and merges.txt. <|endoftext|> is a
// special token if the vocabulary has it. No token is put before a text. Every
// token of several bytes must be the result of a merge, except those that are
// written <…> or are not the concatenation of two others.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadGpt2Files(
    const NamedText& vocab, const NamedText& merges, int32_t vocab_size);

// tiktoken's ranks of the same encoding: a line holds the bytes of a token in
// base64, a space, and its rank, which is its id. Ranks run from 0 without a
// gap; <|endoftext|> is the next id. There must be `num_ranks` of them, every
// byte among them.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTiktokenRanks(
    const NamedText& ranks, int32_t vocab_size, int64_t num_ranks);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_GPT2_FILES_H_
