#ifndef RECURVE_ENGINE_LOADING_SPECIAL_TOKENS_H_
#define RECURVE_ENGINE_LOADING_SPECIAL_TOKENS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/config.h"
#include "engine/tokenizer/tokenizer.h"

namespace recurve {

// What the files of a tokenizer say about special tokens: tokenizer_config.json
// and, where that is silent, special_tokens_map.json. They name tokens by their
// text.
struct NamedTokens {
  struct Token {
    std::string text;
    std::string file;  // path
  };
  std::optional<Token> bos;
  std::optional<Token> eos;
  std::optional<bool> add_bos;  // before a text
  // added_tokens_decoder of tokenizer_config.json.
  std::map<std::string, int64_t> ids;
  // What could not be read. Models load without these files, so it is no error.
  std::vector<std::string> problems;
};
NamedTokens ReadNamedTokens(const std::string& dir);

// The id of a named token, by the tokenizer, if there is one, or else by
// `named.ids`; nothing where neither knows it, or the model has no such id.
std::optional<int32_t> FindNamedToken(const NamedTokens& named,
                                      const NamedTokens::Token& token,
                                      const Tokenizer* tokenizer,
                                      const ModelDefinition& model);

// Completes the model's end of sequence by what the tokenizer's files say,
// where the config files say nothing, and adds remarks: where no file names
// one, and where the files do not agree. `tokenizer` may be null.
void CompleteEndOfSequence(const NamedTokens& named, const Tokenizer* tokenizer,
                           ModelDefinition* model);

// Adds a remark where tokenizer_config.json wants a token before a text and the
// tokenizer puts none there, or the other way round.
void CompareBeginOfSequence(const NamedTokens& named,
                            const Tokenizer* tokenizer, ModelDefinition* model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_SPECIAL_TOKENS_H_
