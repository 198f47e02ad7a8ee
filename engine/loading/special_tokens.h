#ifndef RECURVE_ENGINE_LOADING_SPECIAL_TOKENS_H_
#define RECURVE_ENGINE_LOADING_SPECIAL_TOKENS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/models/model_definition.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// Special tokens from the tokenizer's files: tokenizer_config.json and, for
// keys it lacks, special_tokens_map.json. They name tokens by their text.
struct NamedTokens {
  struct Token {
    std::string text;
    std::string file;  // path
  };
  std::optional<Token> bos;
  std::optional<Token> eos;
  std::optional<bool> add_bos;  // at the start of a text
  bool add_eos = false;         // at the end of a text
  std::string config;           // path of tokenizer_config.json
  // added_tokens_decoder of tokenizer_config.json.
  std::map<std::string, int64_t> ids;
  // Unreadable files or keys. Models load without these files, so they are no
  // errors.
  std::vector<std::string> problems;
};
NamedTokens ReadNamedTokens(const std::string& dir);

// The id of a named token, from the tokenizer, if there is one, or else from
// `named.ids`; nothing if neither has it, or the model has no such id.
std::optional<int32_t> FindNamedToken(const NamedTokens& named,
                                      const NamedTokens::Token& token,
                                      const Tokenizer* tokenizer,
                                      const ModelDefinition& model);

// Completes the model's end-of-sequence tokens from the tokenizer's files if
// the config files name none. Adds remarks if no file names one, or if the
// files disagree. `tokenizer` may be null.
void CompleteEndOfSequence(const NamedTokens& named, const Tokenizer* tokenizer,
                           ModelDefinition* model);

// Adds a remark if tokenizer_config.json and the tokenizer disagree on whether
// a token goes at the start of a text.
void CompareBeginOfSequence(const NamedTokens& named,
                            const Tokenizer* tokenizer, ModelDefinition* model);

// InvalidArgument if tokenizer_config.json wants an end of sequence after a
// text: prompts are continued, so none is put there.
absl::Status CheckEndOfText(const NamedTokens& named,
                            const Tokenizer* tokenizer);

// Adds a remark if a tokenizer.json lacks a token of tokenizer_config.json, or
// has it under another id: it is not found in texts.
void CompareAddedTokens(const NamedTokens& named, const Tokenizer* tokenizer,
                        ModelDefinition* model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_SPECIAL_TOKENS_H_
