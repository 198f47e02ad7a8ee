#ifndef RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_PIPELINE_H_
#define RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_PIPELINE_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/checkpoint/json_reader.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/token_decoder.h"

namespace recurve {

// The parts of a tokenizer.json other than its model. `root` is the whole file;
// each error names the key, the value found and what is supported.

absl::StatusOr<Normalizer> ReadNormalizer(const JsonObject& root);

struct JsonPreTokenizer {
  PreTokenizer pre_tokenizer;
  bool byte_level = false;  // words are bytes, and not characters
};
absl::StatusOr<JsonPreTokenizer> ReadPreTokenizer(const JsonObject& root);

// The token that is put before a text, if any.
absl::StatusOr<std::optional<int32_t>> ReadPostProcessor(const JsonObject& root,
                                                         int32_t vocab_size);

// `byte_level`: as the pre-tokenizer.
absl::StatusOr<TokenDecoder> ReadDecoder(const JsonObject& root,
                                         bool byte_level);

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_TOKENIZER_JSON_PIPELINE_H_
