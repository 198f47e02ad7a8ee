// Encodes and decodes for tokenizer_compare_test.py: tokenizer_ids FOLDER
// VOCAB_SIZE. Each line of the input is the JSON of a text or of a list of ids;
// each line of the output {"ids": [...], "text": "..."}, where the text is what
// streaming gives, token by token.

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "engine/tokenizer/load_tokenizer.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace {

using nlohmann::json;

int Fail(absl::string_view message) {
  std::cerr << message << '\n';
  return 1;
}

int Run(const recurve::Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    const json input = json::parse(line);
    std::vector<int32_t> ids;
    if (input.is_string()) {
      auto encoded = tokenizer.Encode(input.get_ref<const std::string&>(),
                                      tokenizer.bos_id().has_value());
      if (!encoded.ok()) return Fail(encoded.status().ToString());
      ids = *std::move(encoded);
    } else {
      ids = input.get<std::vector<int32_t>>();
    }
    recurve::StreamDecoder decoder(&tokenizer, {});
    std::string text;
    for (int32_t id : ids) {
      const std::string piece = decoder.Append(id);
      if (!recurve::IsValidUtf8(piece)) return Fail("a piece is not UTF-8");
      text += piece;
    }
    text += decoder.Flush();
    std::cout << json{{"ids", ids}, {"text", text}}.dump() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  recurve::TokenizerChoice choice;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &choice.vocab_size)) {
    return Fail("usage: tokenizer_ids FOLDER VOCAB_SIZE");
  }
  const auto tokenizer = recurve::LoadTokenizer(argv[1], choice);
  if (!tokenizer.ok()) return Fail(tokenizer.status().ToString());
  if (*tokenizer == nullptr) return Fail("the folder has no tokenizer");
  return Run(**tokenizer);
}
