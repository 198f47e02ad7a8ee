#ifndef RECURVE_ENGINE_TOKENIZER_LOAD_TOKENIZER_H_
#define RECURVE_ENGINE_TOKENIZER_LOAD_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenizer/gpt2_files.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// Tokenizer settings of the model and the operator.
struct TokenizerChoice {
  std::string kind;  // empty: the first whose files are present
  // The name of the kind in errors: the flag or file key that sets it.
  std::string kind_name = "tokenizer";
  int32_t vocab_size = 0;
  std::optional<int32_t> bos;
  // Whether a token is put before a text, if tokenizer_config.json says so, and
  // the token as it names it.
  std::optional<bool> add_bos;
  std::string bos_token;
  std::optional<int32_t> eos;
  std::string eos_file;  // path of the file that names eos, for errors
  int64_t num_ranks = kGpt2NumRanks;  // in a rank file; tests use smaller ones
};

// The tokenizer of the checkpoint in folder `dir`.
//
// An empty kind selects the first whose files are present: tokenizer.json
// ("huggingface"), tokenizer.model ("sentencepiece"), vocab.json and merges.txt
// ("gpt2"), gpt2.tiktoken or r50k_base.tiktoken ("tiktoken"); null if there are
// none. "bytes" needs no file. docs/tokenizers.md lists what each supports.
//
// The model's vocabulary may be larger than the tokenizer's: ids unknown to the
// tokenizer have no text. `bos` and `eos` are the model's: "bytes" puts `bos`
// before a text, and so does "sentencepiece" unless `add_bos` is false.
// "huggingface" puts there what its file says; if `add_bos` is set, `bos_token`
// or nothing. The others put nothing.
//
// InvalidArgument names the file, the value found and what is supported; also
// for a tokenizer with an id outside the model's vocabulary, and for incomplete
// files: half of a pair, merges or ranks that end early.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& dir, const TokenizerChoice& choice);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_LOAD_TOKENIZER_H_
