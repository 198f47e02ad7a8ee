#include "server/openai/openai.h"

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

// The offsets of each token separately, as in streams.
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
       {"prompt has 9000 tokens; this server's max_model_len is 8192, with at "
        "least one to generate",
        "prompt[1] has 600 tokens; this model looks at a prompt as a whole, "
        "and "
        "a step of this server has room for 481 (--max-chunk-tokens, "
        "--max-num-batched-tokens)"}) {
    const ApiError error = ErrorOf(absl::InvalidArgumentError(message));
    EXPECT_EQ(error.param, "prompt") << message;
    EXPECT_EQ(error.code, "context_length_exceeded") << message;
  }
  EXPECT_EQ(ErrorOf(absl::InvalidArgumentError("prompt[3] is 9; it is not a "
                                               "token"))
                .code,
            "");
}

// The engine's errors, in the names of this API.
TEST(OpenAiTest, FieldsHaveTheirNamesInThisApi) {
  const RequestLimits limits = {/*vocab_size=*/100, /*max_model_len=*/50,
                                /*has_tokenizer=*/false};
  const auto error = [&](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    const ApiError error = ErrorOf(status);
    return std::pair(error.param, error.message);
  };
  const FieldNames one = CompletionFieldNames(0, 1);
  const FieldNames second = CompletionFieldNames(1, 3);
  using testing::HasSubstr;
  using testing::Pair;
  EXPECT_THAT(
      error(ValidateCommand({{1, 2, 100}, 1}, 0, limits, one.append_ids, one)),
      Pair("prompt", HasSubstr("prompt[2] is 100; ")));
  EXPECT_THAT(error(ValidateCommand({{1, 2, 100}, 1}, 0, limits,
                                    second.append_ids, second)),
              Pair("prompt", HasSubstr("prompt[1][2] is 100; ")));
  EXPECT_THAT(
      error(ValidateCommand({{1, 2}, 49}, 0, limits, one.append_ids, one)),
      Pair("max_tokens", HasSubstr("max_tokens is 49; ")));
  EXPECT_THAT(error(ValidateCommand({{1, 2}, 49}, 0, limits, second.append_ids,
                                    second)),
              Pair("max_tokens", HasSubstr("max_tokens (prompt[1]) is 49; ")));
  SequenceOptions options;
  options.stopping.stop_strings = {"a"};
  EXPECT_THAT(error(ValidateOptions(options, limits, one)),
              Pair("stop", HasSubstr("stop needs a tokenizer")));
  options = {};
  options.stopping.stop_token_ids = {100};
  EXPECT_THAT(error(ValidateOptions(options, limits, one)),
              Pair("stop_token_ids", HasSubstr("stop_token_ids[0] is 100; ")));
  options = {};
  options.sampling.logit_bias = {{100, 1.0f}};
  EXPECT_THAT(error(ValidateOptions(options, limits, one)),
              Pair("logit_bias", HasSubstr("logit_bias key is 100; ")));
}

TEST(OpenAiTest, TextOffsetsAreOfTheText) {
  const std::unique_ptr<Tokenizer> tokenizer =
      *BytesTokenizer::Make(258, 256, 257);
  CompletionRequest request;
  request.prompts.emplace_back().options.sampling.num_logprobs = 0;
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

// The error for a request with these fields in addition to a prompt; empty:
// none.
std::string ProblemOf(json body) {
  body["prompt"] = "a";
  CompletionRequest request;
  const auto error =
      ParseCompletion(body.dump(), "demo", {258, 8192, true}, &request);
  if (!error) return "";
  EXPECT_EQ(error->status, 400);
  return error->message;
}

// As load tools and clients send them by default.
TEST(OpenAiTest, OptionsThatAskForNothingAreAccepted) {
  const json accepted[] = {
      // guidellm
      {{"stream", true},
       {"stream_options",
        {{"include_usage", true}, {"continuous_usage_stats", true}}},
       {"max_tokens", 8},
       {"stop", nullptr},
       {"ignore_eos", true}},
      // aiperf, as its guide has it
      {{"stream", true},
       {"stream_options", {{"include_usage", true}}},
       {"max_tokens", 8},
       {"min_tokens", 8},
       {"ignore_eos", true}},
      // vllm bench serve
      {{"max_tokens", 8},
       {"temperature", 0.0},
       {"repetition_penalty", 1.0},
       {"logprobs", nullptr},
       {"stream", true},
       {"stream_options", {{"include_usage", true}}}},
      // sglang.bench_serving
      {{"temperature", 0.0},
       {"best_of", 1},
       {"max_tokens", 8},
       {"stream", true},
       {"ignore_eos", true}},
      // LangChain
      {{"temperature", 0.7},
       {"max_tokens", 256},
       {"top_p", 1},
       {"frequency_penalty", 0},
       {"presence_penalty", 0},
       {"n", 1},
       {"logit_bias", json::object()}},
      // OpenAI's other fields
      {{"user", "me"},
       {"safety_identifier", "me"},
       {"prompt_cache_key", "x"},
       {"metadata", {{"a", "b"}}},
       {"store", false},
       {"service_tier", "auto"},
       {"response_format", {{"type", "text"}}}},
      {{"service_tier", "default"},
       {"bad_words", json::array()},
       {"logits_processors", json::array()},
       {"n", 1.0},
       {"min_tokens", 0}},
      {{"min_tokens", 0}, {"stop", "a"}},
      // lm-evaluation-harness
      {{"temperature", 0},
       {"max_tokens", 1},
       {"logprobs", 1},
       {"seed", 1234},
       {"echo", true}},
      {{"max_tokens", 0}, {"echo", true}},
      {{"max_tokens", 0}, {"prompt_logprobs", 0}},
      // smg
      {{"skip_special_tokens", true},
       {"spaces_between_special_tokens", true},
       {"include_stop_str_in_output", false},
       {"min_tokens", 3}},
      // Numbers of languages that have one kind of them.
      {{"max_tokens", 16.0},
       {"top_k", -1.0},
       {"seed", -3.0},
       {"logprobs", 1e0}},
      // All fields of vLLM with their defaults, as clients write that fill a
      // class of them.
      {{"best_of", nullptr},
       {"echo", false},
       {"frequency_penalty", 0.0},
       {"logit_bias", nullptr},
       {"logprobs", nullptr},
       {"max_tokens", 16},
       {"n", 1},
       {"presence_penalty", 0.0},
       {"seed", nullptr},
       {"stop", json::array()},
       {"stream", false},
       {"stream_options", nullptr},
       {"suffix", nullptr},
       {"temperature", nullptr},
       {"top_p", nullptr},
       {"user", nullptr},
       {"use_beam_search", false},
       {"top_k", nullptr},
       {"min_p", nullptr},
       {"repetition_penalty", nullptr},
       {"length_penalty", 1.0},
       {"stop_token_ids", json::array()},
       {"include_stop_str_in_output", false},
       {"ignore_eos", false},
       {"min_tokens", 0},
       {"skip_special_tokens", true},
       {"spaces_between_special_tokens", true},
       {"truncate_prompt_tokens", nullptr},
       {"allowed_token_ids", nullptr},
       {"prompt_logprobs", nullptr},
       {"prompt_embeds", nullptr},
       {"add_special_tokens", true},
       {"response_format", nullptr},
       {"structured_outputs", nullptr},
       {"priority", 0},
       {"request_id", "0c8f3f6e5a9d4b1f"},
       {"logits_processors", nullptr},
       {"return_tokens_as_token_ids", nullptr},
       {"return_token_ids", nullptr},
       {"cache_salt", nullptr},
       {"kv_transfer_params", nullptr},
       {"vllm_xargs", nullptr}},
      {{"stream_options", json::object()}},
      {{"cache_salt", "x"}, {"prompt_cache_key", "x"}},
      {{"min_tokens", 8},
       {"max_completion_tokens", 9},
       {"ignore_eos", true},
       {"stop", json::array()},
       {"stop_token_ids", json::array()}},
  };
  for (const json& body : accepted) EXPECT_EQ(ProblemOf(body), "") << body;
}

TEST(OpenAiTest, OptionsThatAskForWhatThereIsNotAreRefused) {
  const std::pair<json, std::string> refused[] = {
      {{{"min_tokens", -1}},
       "min_tokens is -1; expected an integer from 0 to 2147483647"},
      {{{"max_tokens", 0}},
       "max_tokens is 0; expected an integer from 1 to 2147483647"},
      {{{"prompt_logprobs", 21}},
       "prompt_logprobs is 21; expected an integer from 0 to 20"},
      {{{"prompt_logprobs", -1}},
       "prompt_logprobs is -1; expected an integer from 0 to 20"},
      {{{"prompt_logprobs", 2}, {"stream", true}},
       "prompt_logprobs is 2, and stream is true; expected no stream, or echo "
       "with logprobs"},
      {{{"echo", 1}}, "echo is 1; expected true or false"},
      {{{"skip_special_tokens", "no"}},
       "skip_special_tokens is 'no'; expected true or false"},
      {{{"spaces_between_special_tokens", false}},
       "spaces_between_special_tokens is false; this server supports true "
       "only"},
      {{{"service_tier", "flex"}},
       "service_tier is 'flex'; this server supports \"auto\" or \"default\" "
       "only"},
      {{{"store", true}}, "store is true; this server supports false only"},
      {{{"metadata", "a"}}, "metadata is 'a'; expected an object"},
      {{{"stream_options", {{"include_usage", false}}}},
       "stream_options is set, and stream is not true"},
      {{{"max_tokens", 16.5}},
       "max_tokens is 16.5; expected an integer from 0 to 2147483647"},
      {{{"top_k", 1e300}},
       "top_k is 1e+300; expected an integer from -1 to 2147483647"},
      {{{"seed", 1e17}},
       "seed is 1e+17; expected an integer from -9223372036854775808 to "
       "18446744073709551615"},
      {{{"cache_salt", "x"}, {"prompt_cache_key", "y"}},
       "prompt_cache_key is 'y' and cache_salt is 'x'; expected one value, as "
       "both are names of one option"},
      {{{"cache_salt", std::string(257, 'k')}},
       "cache_salt has 257 bytes; expected at most 256"},
      {{{"request_id", "a b"}},
       "request_id is 'a b'; expected a string of 1 to 128 visible ASCII "
       "characters, ! to ~"},
      {{{"safety_identifier", 1}}, "safety_identifier is 1; expected a string"},
      {{{"bad_words", {"a"}}},
       "bad_words is a list of 1; this server supports [] only"},
      {{{"response_format", {{"type", "json_object"}}}},
       "response_format is an object; this server supports "
       "{\"type\":\"text\"} only"},
  };
  for (const auto& [body, problem] : refused) {
    EXPECT_EQ(ProblemOf(body), problem) << body;
  }
}

}  // namespace
}  // namespace recurve
