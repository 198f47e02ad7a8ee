#include "server/openai.h"

#include <memory>
#include <utility>
#include <vector>

#include "engine/tokenizer/bytes_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

// Of each token by itself, as a stream has them.
json OffsetsOf(const CompletionRequest& request, const Tokenizer* tokenizer,
               const std::vector<uint32_t>& ids) {
  ChoicePiece piece;
  TextOffsets text_offsets(tokenizer, {});
  json offsets = json::array();
  for (const uint32_t id : ids) {
    piece.tokens.Clear();
    piece.tokens.add_ids(id);
    piece.tokens.add_logprobs()->set_logprob(-1.0f);
    const json choice = ChoiceJson(piece, request, tokenizer, &text_offsets);
    offsets.push_back(choice["logprobs"]["text_offset"][0]);
  }
  return offsets;
}

// Whatever it is that bounds the length of a prompt.
TEST(OpenAiTest, APromptThatIsTooLongHasACode) {
  for (const char* message :
       {"prompt_text has 9000 tokens; this server's max_model_len is 8192, "
        "with "
        "at least one to generate",
        "prompt_ids has 600 tokens; this model looks at a prompt as a whole, "
        "and "
        "a step of this server has room for 481 (--max-chunk-tokens, "
        "--max-num-batched-tokens)"}) {
    const ApiError error = ErrorOf(absl::InvalidArgumentError(message));
    EXPECT_EQ(error.param, "prompt") << message;
    EXPECT_EQ(error.code, "context_length_exceeded") << message;
  }
  EXPECT_EQ(ErrorOf(absl::InvalidArgumentError("prompt_ids[3] is 9; it is not "
                                               "a token"))
                .code,
            "");
}

TEST(OpenAiTest, TextOffsetsAreOfTheText) {
  const std::unique_ptr<Tokenizer> tokenizer =
      *BytesTokenizer::Make(258, 256, 257);
  CompletionRequest request;
  request.prompts.emplace_back().set_logprobs(0);
  // a, the two bytes of é, the end of the text, b.
  const std::vector<uint32_t> ids = {0x61, 0xc3, 0xa9, 257, 0x62};
  EXPECT_EQ(OffsetsOf(request, tokenizer.get(), ids), json({0, 1, 1, 2, 2}));
  // A byte that is no character is one in the text.
  EXPECT_EQ(OffsetsOf(request, tokenizer.get(), {0x61, 0x80, 0x80, 0x62}),
            json({0, 1, 2, 3}));
  request.tokens_as_ids = true;
  EXPECT_EQ(OffsetsOf(request, tokenizer.get(), ids), json({0, 1, 1, 2, 2}));
  EXPECT_EQ(OffsetsOf(request, nullptr, ids), json({0, 0, 0, 0, 0}));
}

TEST(OpenAiTest, SamplingOptionsHaveTheRangesOfTheEngine) {
  const std::pair<const char*, OptionRange> options[] = {
      {"temperature", kTemperatureRange},
      {"top_p", kTopPRange},
      {"min_p", kMinPRange},
      {"repetition_penalty", kRepetitionPenaltyRange},
      {"presence_penalty", kPenaltyRange},
      {"frequency_penalty", kPenaltyRange}};
  const auto refused = [](const char* key, double value) {
    const json body = {{"prompt", "a"}, {key, value}};
    CompletionRequest request;
    return ParseCompletion(body.dump(), "demo", {258, 8192, true}, &request)
        .has_value();
  };
  for (const auto& [key, range] : options) {
    EXPECT_FALSE(refused(key, range.min)) << key;
    EXPECT_FALSE(refused(key, range.max)) << key;
    EXPECT_TRUE(refused(key, range.min - 0.001)) << key;
    EXPECT_TRUE(refused(key, range.max + 0.001)) << key;
  }
}

}  // namespace
}  // namespace recurve
