#include "server/vllm/vllm_request.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

namespace vg = ::vllm::grpc::engine;

constexpr RequestContext kContext = {nullptr, 100, 20, 258};

vg::GenerateRequest Request() {
  vg::GenerateRequest request;
  for (const uint32_t id : {3u, 1u, 4u}) {
    request.mutable_tokenized()->add_input_ids(id);
  }
  return request;
}

TEST(VllmRequestTest, FieldsThatAreNotSetAreAsInVllm) {
  const auto input = FromVllm(Request(), kContext);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(std::get<std::vector<int32_t>>(input->prompt),
            (std::vector<int32_t>{3, 1, 4}));
  const SamplingParams& sampling = input->options.sampling;
  EXPECT_EQ(sampling.temperature, 1.0f);
  EXPECT_EQ(sampling.top_p, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.min_p, 0.0f);
  EXPECT_EQ(sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(sampling.num_logprobs, -1);
  EXPECT_FALSE(input->seed.has_value());
  EXPECT_FALSE(input->max_new_tokens.has_value());
  EXPECT_FALSE(input->options.stopping.ignore_eos);
  EXPECT_EQ(*SamplesOf(Request()), 1);
}

TEST(VllmRequestTest, FieldsThatAreSet) {
  vg::GenerateRequest request;
  request.set_text("abc");
  vg::SamplingParams& in = *request.mutable_sampling_params();
  in.set_temperature(0);
  in.set_top_p(0.5f);
  in.set_top_k(4294967295u);  // more than any vocabulary: all
  in.set_min_p(0.25f);
  in.set_frequency_penalty(0.5f);
  in.set_presence_penalty(-0.5f);
  in.set_repetition_penalty(2);
  in.set_max_tokens(7);
  in.add_stop("x");
  in.add_stop_token_ids(9);
  in.set_ignore_eos(true);
  in.set_min_tokens(4);
  in.set_prompt_logprobs(0);
  in.set_n(3);
  in.set_logprobs(0);
  in.set_seed(-2);
  in.set_json_object(false);
  in.set_skip_special_tokens(true);
  in.set_include_stop_str_in_output(true);
  in.set_spaces_between_special_tokens(true);
  (*in.mutable_logit_bias())[5] = 1;
  (*in.mutable_logit_bias())[2] = -1;
  request.set_data_parallel_rank(0);
  request.set_request_id(std::string(256, 'a'));

  const auto input = FromVllm(request, kContext);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(std::get<std::string>(input->prompt), "abc");
  const SamplingParams& sampling = input->options.sampling;
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.top_k, 2147483647);
  EXPECT_EQ(sampling.min_p, 0.25f);
  EXPECT_EQ(sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(sampling.presence_penalty, -0.5f);
  EXPECT_EQ(sampling.repetition_penalty, 2.0f);
  EXPECT_EQ(sampling.num_logprobs, 0);
  EXPECT_THAT(sampling.logit_bias,
              testing::ElementsAre(testing::Pair(2, -1), testing::Pair(5, 1)));
  EXPECT_EQ(input->seed, uint64_t{0} - 2);
  EXPECT_EQ(input->max_new_tokens, 7);
  EXPECT_THAT(input->options.stopping.stop_strings, testing::ElementsAre("x"));
  EXPECT_THAT(input->options.stopping.stop_token_ids, testing::ElementsAre(9));
  EXPECT_TRUE(input->options.stopping.ignore_eos);
  EXPECT_TRUE(input->options.stopping.skip_special_tokens);
  EXPECT_EQ(input->options.stopping.min_tokens, 4);
  EXPECT_EQ(input->prompt_logprobs, 0);
  EXPECT_EQ(*SamplesOf(request), 3);
}

TEST(VllmRequestTest, WhatTheServerDoesNotHaveIsRefusedByName) {
  using Change = std::function<void(vg::GenerateRequest*)>;
  const auto sampling = [](auto change) -> Change {
    return [change](vg::GenerateRequest* request) {
      change(request->mutable_sampling_params());
    };
  };
  const std::pair<const char*, Change> cases[] = {
      {"mm_inputs is set", [](auto* r) { r->mutable_mm_inputs(); }},
      {"extra_mm_inputs is set", [](auto* r) { r->add_extra_mm_inputs(); }},
      {"media_refs is set", [](auto* r) { r->mutable_media_refs(); }},
      {"kv_transfer_params is set",
       [](auto* r) { r->mutable_kv_transfer_params(); }},
      {"kv_transfer_params_json is set",
       [](auto* r) { r->set_kv_transfer_params_json("{}"); }},
      {"data_parallel_rank is 1; expected 0",
       [](auto* r) { r->set_data_parallel_rank(1); }},
      {"request_id has 257 bytes; expected at most 256",
       [](auto* r) { r->set_request_id(std::string(257, 'a')); }},
      {"tokenized.input_ids[3] is 4294967295; the vocabulary has ids 0 to 257",
       [](auto* r) { r->mutable_tokenized()->add_input_ids(4294967295u); }},
      {"sampling_params.json_schema is set",
       sampling([](auto* s) { s->set_json_schema("{}"); })},
      {"sampling_params.regex is set",
       sampling([](auto* s) { s->set_regex("a"); })},
      {"sampling_params.grammar is set",
       sampling([](auto* s) { s->set_grammar("a"); })},
      {"sampling_params.structural_tag is set",
       sampling([](auto* s) { s->set_structural_tag("a"); })},
      {"sampling_params.json_object is set",
       sampling([](auto* s) { s->set_json_object(true); })},
      {"sampling_params.choice is set",
       sampling([](auto* s) { s->mutable_choice(); })},
      {"sampling_params.prompt_logprobs is -1; expected 0 to 20",
       sampling([](auto* s) { s->set_prompt_logprobs(-1); })},
      {"sampling_params.truncate_prompt_tokens is -1",
       sampling([](auto* s) { s->set_truncate_prompt_tokens(-1); })},
      {"sampling_params.logprobs is -1; expected 0 to 20",
       sampling([](auto* s) { s->set_logprobs(-1); })},
      {"sampling_params.logprobs is 21; expected 0 to 20",
       sampling([](auto* s) { s->set_logprobs(21); })},
      {"sampling_params.stop_token_ids[0] is 4294967295",
       sampling([](auto* s) { s->add_stop_token_ids(4294967295u); })},
  };
  for (const auto& [message, change] : cases) {
    vg::GenerateRequest request = Request();
    change(&request);
    const absl::Status status = FromVllm(request, kContext).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(message));
  }
}

TEST(VllmRequestTest, SamplesHaveALimit) {
  vg::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_n(16);
  EXPECT_EQ(*SamplesOf(request), 16);
  request.mutable_sampling_params()->set_n(17);
  EXPECT_EQ(SamplesOf(request).status().message(),
            "sampling_params.n is 17; expected 1 to 16");
}

TEST(VllmRequestTest, AnAnswerInOnePieceIsBounded) {
  RequestContext context = kContext;
  context.default_max_new_tokens = 3000000;
  RequestInput input;
  ASSERT_TRUE(BoundWholeAnswer(input, 2, &context).ok());
  EXPECT_EQ(context.default_max_new_tokens, 1048576);
  input.max_new_tokens = 1048576;
  EXPECT_TRUE(BoundWholeAnswer(input, 2, &context).ok());
  input.max_new_tokens = 1048577;
  EXPECT_EQ(BoundWholeAnswer(input, 2, &context).message(),
            "sampling_params.max_tokens is 1048577; expected at most 1048576 "
            "without stream for 2 continuations with 0 logprobs a token");
  input.max_new_tokens.reset();
  input.options.sampling.num_logprobs = 20;
  ASSERT_TRUE(BoundWholeAnswer(input, 1, &context).ok());
  EXPECT_EQ(context.default_max_new_tokens, (2 << 20) / 169);

  Command command;
  command.append.resize((2 << 20) / 169);
  command.prompt_logprobs = 20;
  EXPECT_TRUE(BoundWholePrompt(command, "text").ok());
  command.append.push_back(1);
  EXPECT_EQ(BoundWholePrompt(command, "text").message(),
            "text has 12410 tokens; without stream at most 12409 are allowed "
            "with sampling_params.prompt_logprobs 20");
  command.prompt_logprobs = -1;
  EXPECT_TRUE(BoundWholePrompt(command, "text").ok());
}

TEST(VllmRequestTest, NoPrompt) {
  const auto input = FromVllm(vg::GenerateRequest(), kContext);
  ASSERT_TRUE(input.ok());
  EXPECT_EQ(Complete(*input, kContext, VllmFieldNames()).status().message(),
            "prompt is not set; expected tokenized.input_ids or text");
}

}  // namespace
}  // namespace recurve
