#ifndef RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_H_
#define RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

constexpr char kHuggingFaceKind[] = "huggingface";

// Reads a tokenizer.json of the HuggingFace `tokenizers` library: byte-level
// BPE. Gives the ids that library gives. `text` is the file and `file` its
// name; `vocab_size` is the model's, which may be larger than the tokenizer's.
//
// InvalidArgument names the key, the value found and what is supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizerJson(
    const std::string& file, absl::string_view text, int32_t vocab_size);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_H_
