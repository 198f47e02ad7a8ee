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

// What the model and its owner say about its tokenizer.
struct TokenizerChoice {
  std::string kind;  // empty: the first whose files are there
  // What errors call the kind: the flag or the key of a file that says it.
  std::string kind_name = "tokenizer";
  int32_t vocab_size = 0;
  std::optional<int32_t> bos;
  bool add_bos = true;  // false: "sentencepiece" puts nothing before a text
  std::optional<int32_t> eos;
  std::string eos_file;  // path of the file that says eos, for errors
  int64_t num_ranks = kGpt2NumRanks;  // of a rank file; tests have smaller ones
};

// The tokenizer of the checkpoint in folder `dir`.
//
// An empty kind takes the first whose files are there: tokenizer.json
// ("huggingface"), tokenizer.model ("sentencepiece"), vocab.json and merges.txt
// ("gpt2"), gpt2.tiktoken or r50k_base.tiktoken ("tiktoken"); null where there
// are none. "bytes" needs no file. docs/tokenizers.md says what each supports.
//
// The model's vocabulary may be larger than the tokenizer's: ids that the
// tokenizer does not know have no text. `bos` and `eos` are the model's; only
// "bytes" and "sentencepiece" put `bos` before a text, the other files say
// themselves what goes there.
//
// InvalidArgument names the file, what was found and what is supported; also
// for a tokenizer with an id that the model's vocabulary lacks, and for files
// that are not whole: half of a pair, merges or ranks that end early.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& dir, const TokenizerChoice& choice);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_LOAD_TOKENIZER_H_
