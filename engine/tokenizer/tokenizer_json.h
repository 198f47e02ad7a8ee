#ifndef RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_H_
#define RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

constexpr char kHuggingFaceKind[] = "huggingface";

// What another file says about the start of a text.
struct BeginOfText {
  std::optional<bool> add;  // whether a token is put there
  std::string token;        // which one; empty or unknown: as tokenizer.json
};

// Reads a tokenizer.json of the HuggingFace `tokenizers` library: BPE over
// bytes or characters. Gives the ids that library gives, but `begin` overrides
// what the file puts before a text. `text` is the file and `file` its name;
// `vocab_size` is the model's, which may be larger than the tokenizer's.
//
// InvalidArgument names the key, the value found and what is supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizerJson(
    const std::string& file, absl::string_view text, int32_t vocab_size,
    const BeginOfText& begin = {});

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_H_
