// Many clients at once, with too little memory for all of them.

#include <thread>

#include "base/random.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/direct_channel.h"

namespace recurve {
namespace {

struct Job {
  v1::GenerateRequest request;
  int64_t cancel_after = -1;  // tokens; -1: runs to its end
};

// Request i of the load: prompt of 1 to 700 tokens, mixed sampling. A sanitizer
// multiplies the cost of every token: there are fewer tokens then, a larger
// part of them outputs, because streams that do not grow preempt no others.
Job MakeJob(uint64_t i) {
  const auto words = Philox4x32(20261121, i, 0);
  Job job;
  job.request =
      GreedyRequest(RandomPrompt(i, 1 + words[0] % (Sanitized() ? 200 : 700)),
                    1 + words[1] % (Sanitized() ? 120 : 200));
  v1::SamplingParams& sampling = *job.request.mutable_sampling();
  sampling.set_seed(i);
  if (i % 3 == 1) {
    sampling.set_temperature(0.8f);
    sampling.set_top_p(0.95f);
  } else if (i % 3 == 2) {
    sampling.set_temperature(1.2f);
    sampling.set_top_k(40);
    sampling.set_min_p(0.02f);
    sampling.set_repetition_penalty(1.1f);
    sampling.set_presence_penalty(0.5f);
  }
  job.request.set_priority(static_cast<int32_t>(i % 4 == 0));
  if (i % 5 == 0) {
    job.cancel_after = job.request.stopping().max_new_tokens() / 2;
  }
  return job;
}

TEST(LoadTest, SixtyFourStreamsGiveTheTokensOfTheirSoloRuns) {
  constexpr int kStreams = 64;
  std::vector<Job> jobs;
  for (int i = 0; i < kStreams; ++i) jobs.push_back(MakeJob(i));

  std::vector<std::vector<uint32_t>> solo;
  {
    TestServer server;
    const auto client = server.Connect();
    for (const Job& job : jobs) {
      const auto outcome = Generate(*client, job.request);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      solo.push_back(outcome.generation.token_ids);
    }
    server.ExpectIdle();
  }

  ServerOptions options = DemoOptions();
  options.engine.max_num_seqs = 24;
  options.engine.max_num_batched_tokens = 200;
  options.engine.max_chunk_tokens = 77;
  options.model.kv_pages = Sanitized() ? 16 : 48;
  TestServer server(options);
  std::vector<std::thread> threads;
  std::vector<GenerateOutcome> outcomes(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      const auto client = server.Connect();
      GenerateOutcome& outcome = outcomes[i];
      outcome.status = client->Generate(
          jobs[i].request, [&](const v1::GenerateEvent& event) {
            EXPECT_TRUE(outcome.generation.Add(event).ok());
            return jobs[i].cancel_after < 0 ||
                   static_cast<int64_t>(outcome.generation.token_ids.size()) <=
                       jobs[i].cancel_after;
          });
    });
  }
  for (std::thread& thread : threads) thread.join();

  int64_t finished = 0;
  for (int i = 0; i < kStreams; ++i) {
    const auto& ids = outcomes[i].generation.token_ids;
    if (outcomes[i].status.ok()) {
      ++finished;
      EXPECT_EQ(ids, solo[i]) << "request " << i;
    } else {
      // Cancelled ones too gave the right tokens as far as they went.
      EXPECT_GE(jobs[i].cancel_after, 0) << outcomes[i].status;
      ASSERT_LE(ids.size(), solo[i].size());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), solo[i].begin()))
          << "request " << i;
    }
  }
  EXPECT_GE(finished, kStreams * 4 / 5 - 1);
  const auto load = server.Connect()->GetLoad();
  EXPECT_GT(load->preemptions_total(), 0)
      << "the page pool was not small enough to test preemption";
  server.ExpectIdle();
}

// A channel that takes little before its flow control says stop; by default
// gRPC buffers megabytes for a client that does not read.
std::shared_ptr<grpc::Channel> NarrowChannel(const TestServer& server) {
  grpc::ChannelArguments arguments = DirectArguments();
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16384);
  return DirectChannel(server.address(), arguments);
}

TEST(LoadTest, ASlowReaderSlowsOnlyItself) {
  ServerOptions options = DemoOptions();
  options.max_buffered_tokens = 8;
  TestServer server(options);
  const auto stub = v1::Inference::NewStub(NarrowChannel(server));
  grpc::ClientContext context;
  // Logits make messages large: a kilobyte a token.
  constexpr uint32_t kTokens = 1500;
  const auto slow = stub->Decode(&context);
  v1::DecodeRequest request;
  request.mutable_append_ids()->add_ids(256);
  request.set_generate(kTokens);
  request.set_logits(v1::LOGITS_MODE_NEXT);
  request.mutable_stopping()->set_ignore_eos(true);
  ASSERT_TRUE(slow->Write(request));

  // It pauses long before it is done ...
  uint64_t generated = 0;
  const auto client = server.Connect();
  ASSERT_TRUE(WaitFor([&] {
    const uint64_t before =
        std::exchange(generated, client->GetLoad()->generation_tokens_total());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return generated > 0 && generated == before;
  }));
  EXPECT_LT(generated, kTokens);
  // ... others run meanwhile ...
  const auto other = Generate(*client, GreedyRequest({256, 65}, 100));
  EXPECT_TRUE(other.status.ok()) << other.status;
  EXPECT_EQ(other.generation.token_ids.size(), 100);
  // ... and it gets everything when it reads at last.
  std::vector<uint32_t> ids;
  int64_t rows = 0;
  v1::DecodeResponse response;
  while (slow->Read(&response)) {
    ids.insert(ids.end(), response.tokens().ids().begin(),
               response.tokens().ids().end());
    rows += response.logits_size();
    if (response.done()) break;
  }
  EXPECT_EQ(ids.size(), kTokens);
  EXPECT_EQ(rows, kTokens);
  slow->WritesDone();
  EXPECT_TRUE(slow->Finish().ok());
  const auto solo = Generate(*client, GreedyRequest({256}, kTokens));
  EXPECT_EQ(ids, solo.generation.token_ids);
  server.ExpectIdle();
}

TEST(LoadTest, EveryPipelinedCommandGetsItsOwnDone) {
  TestServer server;
  constexpr int kCommands = 300;
  const auto stub = v1::Inference::NewStub(NarrowChannel(server));
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  std::thread writer([&] {
    for (int i = 0; i < kCommands; ++i) {
      v1::DecodeRequest request;
      if (i == 0) request.mutable_append_ids()->add_ids(256);
      if (i == 0) request.mutable_stopping()->set_ignore_eos(true);
      request.set_generate(1 + i % 3);
      request.set_logits(v1::LOGITS_MODE_NEXT);
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  // Reads begin late, so that output has to wait.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  int done = 0;
  int ids = 0;
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
    ids += response.tokens().ids_size();
    if (!response.done()) continue;
    EXPECT_EQ(ids, 1 + done % 3) << "command " << done;
    ids = 0;
    ++done;
  }
  writer.join();
  EXPECT_EQ(done, kCommands);
  EXPECT_TRUE(stream->Finish().ok());
  server.ExpectIdle();
}

TEST(LoadTest, AFinishedCallThatNobodyReadsIsBrokenOff) {
  ServerOptions options = DemoOptions();
  options.engine.stalled_client_timeout = std::chrono::milliseconds(500);
  TestServer server(options);
  const auto stub = v1::Inference::NewStub(NarrowChannel(server));
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request;
  request.mutable_append_ids()->add_ids(256);
  request.set_generate(200);  // fits the buffer, but not the channel's window
  request.set_logits(v1::LOGITS_MODE_NEXT);
  request.mutable_stopping()->set_ignore_eos(true);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->WritesDone());
  // All memory comes back although the client never reads; so does the call.
  server.ExpectIdle();
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
  }
  stream->Finish();
}

TEST(LoadTest, AClientThatNeverReadsIsCutOff) {
  ServerOptions options = DemoOptions();
  options.max_buffered_tokens = 8;
  options.engine.stalled_client_timeout = std::chrono::milliseconds(300);
  TestServer server(options);
  const auto stub = v1::Inference::NewStub(NarrowChannel(server));
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request;
  request.mutable_append_ids()->add_ids(256);
  request.set_generate(4000);
  request.set_logits(v1::LOGITS_MODE_NEXT);
  request.mutable_stopping()->set_ignore_eos(true);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(WaitFor([&] {
    const EngineLoad load = server.server().engine().load();
    return load.generation_tokens_total > 0 && load.open == 0;
  }));
  server.ExpectIdle();
  // What was on its way still arrives, then the stream breaks off.
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(LoadTest, ThousandsOfConnectsAndCancelsLeaveNothingBehind) {
  TestServer server;
  const int rounds = Sanitized() ? 60 : 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < rounds; i += 4) {
        const auto stub = v1::Inference::NewStub(server.Channel());
        grpc::ClientContext context;
        if (i % 3 == 0) {
          const auto stream =
              stub->Generate(&context, GreedyRequest({256, 65}, 100));
          v1::GenerateEvent event;
          for (int reads = i % 4; reads > 0 && stream->Read(&event); --reads) {
          }
          context.TryCancel();
          EXPECT_FALSE(stream->Finish().ok());
        } else {
          const auto stream = stub->Decode(&context);
          v1::DecodeRequest request;
          request.mutable_append_ids()->add_ids(256);
          request.set_generate(i % 50);
          stream->Write(request);
          if (i % 3 == 1) {
            stream->WritesDone();  // half-closed at once: still answered
            v1::DecodeResponse response;
            while (stream->Read(&response)) {
            }
            EXPECT_TRUE(stream->Finish().ok());
          } else {
            context.TryCancel();
            EXPECT_FALSE(stream->Finish().ok());
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
