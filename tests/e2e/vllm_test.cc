// VllmEngine through a real channel: its answers are those of recurve.v1, and
// its requests have the same keys, quotas, metrics and ends. smg_test.py has
// the gateway that speaks it.

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/server_fixture.h"
#include "vllm/grpc/engine.grpc.pb.h"

namespace recurve {
namespace {

namespace vg = ::vllm::grpc::engine;
namespace sg = ::smg::grpc::common;

using testing::HasSubstr;

struct Outcome {
  grpc::Status status;
  std::vector<vg::GenerateStreamChunk> chunks;
  std::vector<vg::GenerateComplete> completes;

  // Those of one continuation.
  std::vector<uint32_t> ids(uint32_t index = 0) const {
    std::vector<uint32_t> out;
    for (const auto& chunk : chunks) {
      if (chunk.index() != index) continue;
      out.insert(out.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    }
    return out;
  }
};

Outcome Call(TestServer& server, const vg::GenerateRequest& request,
             const std::string& key = "") {
  const auto stub = vg::VllmEngine::NewStub(server.Channel());
  grpc::ClientContext context;
  if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  const auto stream = stub->Generate(&context, request);
  Outcome outcome;
  vg::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_chunk()) outcome.chunks.push_back(response.chunk());
    if (response.has_complete()) {
      outcome.completes.push_back(response.complete());
    }
  }
  outcome.status = stream->Finish();
  return outcome;
}

vg::GenerateRequest Request(const std::vector<uint32_t>& prompt,
                            uint32_t max_tokens) {
  vg::GenerateRequest request;
  request.mutable_tokenized()->mutable_input_ids()->Add(prompt.begin(),
                                                        prompt.end());
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.mutable_sampling_params()->set_ignore_eos(true);
  return request;
}

std::vector<uint32_t> Ids(const google::protobuf::RepeatedField<uint32_t>& in) {
  return {in.begin(), in.end()};
}

TEST(VllmTest, TokensAndLogprobsAreThoseOfRecurve) {
  TestServer server;
  const std::vector<uint32_t> prompt = RandomPrompt(1, 40);
  v1::GenerateRequest ours = GreedyRequest(prompt, 30);
  ours.mutable_sampling()->set_temperature(1);
  ours.mutable_sampling()->set_seed(uint64_t{0} - 5);
  ours.set_logprobs(2);
  ours.set_n(2);
  std::vector<uint32_t> ids[2];
  std::vector<float> logprobs[2];
  std::vector<uint32_t> tops[2];
  {
    const auto stub = v1::Inference::NewStub(server.Channel());
    grpc::ClientContext context;
    const auto stream = stub->Generate(&context, ours);
    v1::GenerateEvent event;
    while (stream->Read(&event)) {
      for (const uint32_t id : event.tokens().ids()) {
        ids[event.sample()].push_back(id);
      }
      for (const auto& logprob : event.tokens().logprobs()) {
        logprobs[event.sample()].push_back(logprob.logprob());
        for (const auto& top : logprob.top()) {
          tops[event.sample()].push_back(top.id());
        }
      }
    }
    ASSERT_TRUE(stream->Finish().ok());
  }
  ASSERT_EQ(ids[0].size(), 30u);

  vg::GenerateRequest theirs = Request(prompt, 30);
  vg::SamplingParams& sampling = *theirs.mutable_sampling_params();
  sampling.set_seed(-5);
  sampling.set_logprobs(2);
  sampling.set_n(2);
  for (const bool stream : {false, true}) {
    theirs.set_stream(stream);
    const Outcome outcome = Call(server, theirs);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    ASSERT_EQ(outcome.completes.size(), 2u);
    EXPECT_EQ(outcome.chunks.empty(), !stream);
    for (const vg::GenerateComplete& complete : outcome.completes) {
      const uint32_t index = complete.index();
      ASSERT_LT(index, 2u);
      EXPECT_EQ(complete.finish_reason(), "length");
      EXPECT_EQ(complete.prompt_tokens(), prompt.size());
      EXPECT_EQ(complete.completion_tokens(), 30u);
      std::vector<uint32_t> got = Ids(complete.output_ids());
      std::vector<float> values(
          complete.output_logprobs().token_logprobs().begin(),
          complete.output_logprobs().token_logprobs().end());
      std::vector<uint32_t> top;
      for (const auto& one : complete.output_logprobs().top_logprobs()) {
        top.insert(top.end(), one.token_ids().begin(), one.token_ids().end());
      }
      for (const auto& chunk : outcome.chunks) {
        if (chunk.index() != index) continue;
        EXPECT_EQ(chunk.prompt_tokens(), prompt.size());
        EXPECT_EQ(static_cast<int>(chunk.completion_tokens()),
                  chunk.token_ids_size());
        EXPECT_EQ(Ids(chunk.token_ids()),
                  Ids(chunk.output_logprobs().token_ids()));
        values.insert(values.end(),
                      chunk.output_logprobs().token_logprobs().begin(),
                      chunk.output_logprobs().token_logprobs().end());
        for (const auto& one : chunk.output_logprobs().top_logprobs()) {
          top.insert(top.end(), one.token_ids().begin(), one.token_ids().end());
        }
      }
      if (stream) {
        EXPECT_TRUE(got.empty());
        got = outcome.ids(index);
      }
      EXPECT_EQ(got, ids[index]);
      EXPECT_EQ(values, logprobs[index]);
      EXPECT_EQ(top, tops[index]);
    }
  }
  server.ExpectIdle();
}

TEST(VllmTest, LogprobsOfThePrompt) {
  TestServer server;
  const std::vector<uint32_t> prompt = RandomPrompt(9, 40);
  v1::GenerateRequest ours = GreedyRequest(prompt, 1);
  ours.set_prompt_logprobs(2);
  std::vector<float> expected;
  std::vector<uint32_t> top;
  {
    const auto stub = v1::Inference::NewStub(server.Channel());
    grpc::ClientContext context;
    const auto stream = stub->Generate(&context, ours);
    v1::GenerateEvent event;
    while (stream->Read(&event)) {
      for (const auto& logprob : event.prompt_logprobs().logprobs()) {
        expected.push_back(logprob.logprob());
        for (const auto& one : logprob.top()) top.push_back(one.id());
      }
    }
    ASSERT_TRUE(stream->Finish().ok());
  }
  ASSERT_EQ(expected.size(), prompt.size() - 1);

  vg::GenerateRequest theirs = Request(prompt, 1);
  theirs.mutable_sampling_params()->set_prompt_logprobs(2);
  theirs.mutable_sampling_params()->set_min_tokens(1);
  for (const bool stream : {false, true}) {
    theirs.set_stream(stream);
    const Outcome outcome = Call(server, theirs);
    ASSERT_EQ(outcome.completes.size(), 1u) << outcome.status.error_message();
    vg::InputLogProbs got = outcome.completes[0].input_logprobs();
    EXPECT_EQ(got.token_ids().empty(), stream);
    for (const auto& chunk : outcome.chunks) {
      got.MergeFrom(chunk.input_logprobs());
    }
    EXPECT_EQ(Ids(got.token_ids()), prompt);
    ASSERT_EQ(got.token_logprobs_size(), static_cast<int>(prompt.size()));
    ASSERT_EQ(got.top_logprobs_size(), static_cast<int>(prompt.size()));
    EXPECT_FALSE(got.token_logprobs(0).has_value());
    EXPECT_TRUE(got.top_logprobs(0).token_ids().empty());
    std::vector<float> values;
    std::vector<uint32_t> tops;
    for (int i = 1; i < got.token_logprobs_size(); ++i) {
      values.push_back(got.token_logprobs(i).value());
      tops.insert(tops.end(), got.top_logprobs(i).token_ids().begin(),
                  got.top_logprobs(i).token_ids().end());
    }
    EXPECT_EQ(values, expected);
    EXPECT_EQ(tops, top);
  }
}

TEST(VllmTest, Stops) {
  TestServer server;
  const std::vector<uint32_t> prompt = RandomPrompt(2, 40);
  vg::GenerateRequest request = Request(prompt, 20);
  request.mutable_sampling_params()->set_temperature(0);
  const Outcome whole = Call(server, request);
  ASSERT_EQ(whole.completes.size(), 1u);
  const std::vector<uint32_t> ids = Ids(whole.completes[0].output_ids());
  ASSERT_EQ(ids.size(), 20u);

  request.mutable_sampling_params()->add_stop_token_ids(ids[5]);
  const Outcome stopped = Call(server, request);
  ASSERT_EQ(stopped.completes.size(), 1u);
  const vg::GenerateComplete& by_token = stopped.completes[0];
  EXPECT_EQ(by_token.finish_reason(), "stop");
  EXPECT_EQ(by_token.matched_token_id(), ids[5]);
  EXPECT_EQ(Ids(by_token.output_ids()).back(), ids[5]);

  vg::GenerateRequest text;
  text.set_text("def fibonacci(n):\n");
  text.mutable_sampling_params()->set_temperature(0);
  text.mutable_sampling_params()->set_max_tokens(160);
  text.mutable_sampling_params()->add_stop("np.arr");
  const Outcome matched = Call(server, text);
  ASSERT_EQ(matched.completes.size(), 1u) << matched.status.error_message();
  EXPECT_EQ(matched.completes[0].finish_reason(), "stop");
  EXPECT_EQ(matched.completes[0].matched_stop_str(), "np.arr");
  EXPECT_EQ(matched.completes[0].prompt_tokens(), 19u);
  EXPECT_EQ(matched.completes[0].output_ids_size(), 17);
}

TEST(VllmTest, ASecondPromptIsCached) {
  ServerOptions options = DemoOptions();
  options.model.prefix_cache_bytes = int64_t{64} << 20;
  TestServer server(options);
  const vg::GenerateRequest request = Request(RandomPrompt(3, 600), 1);
  EXPECT_EQ(Call(server, request).completes[0].cached_tokens(), 0u);
  EXPECT_GT(Call(server, request).completes[0].cached_tokens(), 500u);
}

// The default of max_tokens is the room that is left.
TEST(VllmTest, GeneratesToTheEndOfTheRoom) {
  ServerOptions options = DemoOptions();
  options.engine.max_model_len = 64;
  TestServer server(options);
  vg::GenerateRequest request = Request(RandomPrompt(4, 40), 1);
  request.mutable_sampling_params()->clear_max_tokens();
  const Outcome outcome = Call(server, request);
  ASSERT_EQ(outcome.completes.size(), 1u) << outcome.status.error_message();
  EXPECT_EQ(outcome.completes[0].output_ids_size(), 24);
  EXPECT_EQ(outcome.completes[0].finish_reason(), "length");
}

TEST(VllmTest, RefusalsNameTheFieldAndCount) {
  TestServer server;
  const double before = RefusedRequests(server, "invalid");
  vg::GenerateRequest request = Request(RandomPrompt(5, 4), 5);
  vg::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_top_p(2);
  EXPECT_THAT(Call(server, request).status.error_message(),
              HasSubstr("sampling_params.top_p is 2; expected"));
  sampling.set_top_p(0);
  sampling.set_max_tokens(0);
  EXPECT_THAT(Call(server, request).status.error_message(),
              HasSubstr("sampling_params.max_tokens is 0; expected"));
  sampling.set_max_tokens(5);
  request.mutable_tokenized()->add_input_ids(258);
  const Outcome outcome = Call(server, request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outcome.status.error_message(),
              HasSubstr("tokenized.input_ids[4] is 258; the vocabulary has"));
  EXPECT_EQ(RefusedRequests(server, "invalid"), before + 3);
  EXPECT_EQ(CallWithBytes(server.address(),
                          "/vllm.grpc.engine.VllmEngine/Generate", "\xff")
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  server.ExpectIdle();
}

TEST(VllmTest, ACancelledCallFreesItsMemory) {
  TestServer server;
  const auto stub = vg::VllmEngine::NewStub(server.Channel());
  grpc::ClientContext context;
  vg::GenerateRequest request = Request(RandomPrompt(6, 40), 5000);
  request.set_stream(true);
  const auto stream = stub->Generate(&context, request);
  vg::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectIdle();
}

TEST(VllmTest, HealthFollowsTheDrain) {
  TestServer server;
  const auto stub = vg::VllmEngine::NewStub(server.Channel());
  const auto healthy = [&] {
    grpc::ClientContext context;
    vg::HealthCheckResponse response;
    const grpc::Status status = stub->HealthCheck(&context, {}, &response);
    return status.ok() && response.healthy();
  };
  EXPECT_TRUE(healthy());
  StepHold hold(server, 1);
  grpc::ClientContext context;
  vg::GenerateRequest request = Request(RandomPrompt(7, 4), 8);
  request.set_stream(true);
  const auto stream = stub->Generate(&context, request);
  stream->WaitForInitialMetadata();
  server.server().RequestDrain();
  {
    grpc::ClientContext health;
    vg::HealthCheckResponse response;
    ASSERT_TRUE(stub->HealthCheck(&health, {}, &response).ok());
    EXPECT_FALSE(response.healthy());
    EXPECT_EQ(response.message(), "not serving");
    grpc::ClientContext about;
    vg::GetServerInfoResponse info;
    ASSERT_TRUE(stub->GetServerInfo(&about, {}, &info).ok());
    EXPECT_TRUE(info.is_paused());
    EXPECT_EQ(Call(server, request).status.error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  hold.Open();
  int tokens = 0;
  vg::GenerateResponse response;
  while (stream->Read(&response)) tokens += response.chunk().token_ids_size();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(tokens, 8);
}

TEST(VllmTest, AModelWithoutTokenizerFiles) {
  TestServer server;
  const auto stub = vg::VllmEngine::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->GetTokenizer(&context, sg::GetTokenizerRequest());
  sg::GetTokenizerChunk chunk;
  EXPECT_FALSE(stream->Read(&chunk));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(VllmTest, KeysTellTenantsApart) {
  const std::string keys = testing::TempDir() + "/vllm_test_keys";
  std::ofstream(keys) << KeyLine("acme", "key-a", "max_streams=1")
                      << KeyLine("other", "key-o")
                      << KeyLine("boss", "key-b", "admin=true");
  ServerOptions options = DemoOptions();
  options.api_keys_file = keys;
  TestServer server(options);
  vg::GenerateRequest request = Request(RandomPrompt(8, 4), 5);
  EXPECT_EQ(Call(server, request).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Call(server, request, "key-a").status.ok());

  const auto stub = vg::VllmEngine::NewStub(server.Channel());
  StepHold hold(server, 1);
  grpc::ClientContext running;
  running.AddMetadata("authorization", "Bearer key-a");
  request.set_request_id("mine");
  const auto stream = stub->Generate(&running, request);
  stream->WaitForInitialMetadata();
  // Its quota, its load and its requests are its own.
  EXPECT_EQ(Call(server, request, "key-a").status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto load = [&](const std::string& key) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + key);
    vg::GetLoadsResponse response;
    EXPECT_TRUE(stub->GetLoads(&context, {}, &response).ok());
    return response.loads(0).num_total_reqs();
  };
  EXPECT_TRUE(WaitFor([&] { return load("key-a") == 1; }));
  EXPECT_EQ(load("key-o"), 0);
  EXPECT_TRUE(WaitFor([&] { return load("key-b") == 1; }));
  const auto abort = [&](const std::string& key) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + key);
    vg::AbortRequest named;
    named.add_request_ids("mine");
    vg::AbortResponse response;
    return stub->Abort(&context, named, &response);
  };
  EXPECT_TRUE(abort("key-o").ok());
  EXPECT_EQ(load("key-a"), 1);
  EXPECT_TRUE(abort("key-a").ok());
  hold.Open();
  vg::GenerateResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(status.error_message(), "Abort named the request");
}

TEST(VllmTest, WithoutKeysAbortIsForAdmins) {
  ServerOptions options = DemoOptions();
  options.admin = false;
  TestServer server(options);
  const auto stub = vg::VllmEngine::NewStub(server.Channel());
  grpc::ClientContext context;
  vg::AbortResponse response;
  EXPECT_EQ(stub->Abort(&context, {}, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace recurve
