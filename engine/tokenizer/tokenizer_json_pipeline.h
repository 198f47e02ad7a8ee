#ifndef RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_PIPELINE_H_
#define RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_PIPELINE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/checkpoint/json_reader.h"
#include "engine/tokenizer/pre_tokenizer.h"

namespace recurve {

// The parts of a tokenizer.json other than its model. `root` is the whole file;
// each error names the key, the value found and what is supported.

// Whether the text is normalised to NFC.
absl::StatusOr<bool> ReadNormalizer(const JsonObject& root);

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonObject& root);

// The token that is put before a text, if any.
absl::StatusOr<std::optional<int32_t>> ReadPostProcessor(const JsonObject& root,
                                                         int32_t vocab_size);

absl::Status CheckDecoder(const JsonObject& root);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_PIPELINE_H_
