#include "server/openai.h"

#include <memory>

#include "engine/tokenizer/bytes_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

// Tokens of "aéb": a, the two bytes of é, the end of the text, b.
constexpr uint32_t kIds[] = {0x61, 0xc3, 0xa9, 257, 0x62};

json OffsetsOf(const CompletionRequest& request, const Tokenizer* tokenizer) {
  ChoicePiece piece;
  int64_t text_offset = 0;
  json offsets = json::array();
  // Each by itself, as a stream has them.
  for (const uint32_t id : kIds) {
    piece.tokens.Clear();
    piece.tokens.add_ids(id);
    piece.tokens.add_logprobs()->set_logprob(-1.0f);
    const json choice = ChoiceJson(piece, request, tokenizer, &text_offset);
    offsets.push_back(choice["logprobs"]["text_offset"][0]);
  }
  return offsets;
}

TEST(OpenAiTest, TextOffsetsAreOfTheText) {
  const std::unique_ptr<Tokenizer> tokenizer =
      *BytesTokenizer::Make(258, 256, 257);
  CompletionRequest request;
  request.prompts.emplace_back().set_logprobs(0);
  EXPECT_EQ(OffsetsOf(request, tokenizer.get()), json({0, 1, 1, 2, 2}));
  request.tokens_as_ids = true;
  EXPECT_EQ(OffsetsOf(request, tokenizer.get()), json({0, 1, 1, 2, 2}));
  EXPECT_EQ(OffsetsOf(request, nullptr), json({0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace recurve
