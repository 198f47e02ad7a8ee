// Every status of the public contract, each through a real channel.

#include <chrono>
#include <future>
#include <limits>
#include <thread>

#include "absl/time/clock.h"
#include "tests/e2e/server_fixture.h"

namespace recurve {
namespace {

using testing::HasSubstr;

// --- INVALID_ARGUMENT --------------------------------------------------------

struct BadRequest {
  const char* name;
  std::function<void(v1::GenerateRequest*)> spoil;
  const char* message;  // must be part of the error
};

class BadRequestTest : public testing::TestWithParam<BadRequest> {
 protected:
  static TestServer& server() {
    static TestServer* const server = new TestServer;
    return *server;
  }
};

TEST_P(BadRequestTest, IsRefusedBeforeAnyWork) {
  v1::GenerateRequest request = GreedyRequest({256, 65}, 4);
  GetParam().spoil(&request);
  const auto client = server().Connect();
  const uint64_t steps = client->GetLoad()->steps_total();
  const double refused = RefusedRequests(server(), "invalid");
  const auto outcome = Generate(*client, request);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr(GetParam().message));
  EXPECT_EQ(client->GetLoad()->steps_total(), steps);
  EXPECT_EQ(RefusedRequests(server(), "invalid"), refused + 1);
  server().ExpectIdle();
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const BadRequest kBadRequests[] = {
    {"NoPrompt", [](auto* r) { r->clear_prompt(); }, "prompt is not set"},
    {"EmptyPrompt", [](auto* r) { r->mutable_prompt_ids()->clear_ids(); },
     "prompt_ids is empty"},
    {"IdOutsideVocabulary",
     [](auto* r) { r->mutable_prompt_ids()->add_ids(258); },
     "prompt_ids[2] is 258; the vocabulary has ids 0 to 257"},
    {"IdBeyondInt32",
     [](auto* r) { r->mutable_prompt_ids()->add_ids(0xffffffffu); },
     "prompt_ids[2] is 4294967295; the vocabulary has ids 0 to 257"},
    {"NoNewTokens",
     [](auto* r) { r->mutable_stopping()->set_max_new_tokens(0); },
     "stopping.max_new_tokens is 0"},
    {"NeverFits",
     [](auto* r) { r->mutable_stopping()->set_max_new_tokens(8191); },
     "stopping.max_new_tokens is 8191; the sequence would reach 0 + 2 + 8191"},
    {"LengthOverflow",
     [](auto* r) { r->mutable_stopping()->set_max_new_tokens(0xffffffffu); },
     "max_model_len is 8192"},
    {"PromptTooLong",
     [](auto* r) {
       r->mutable_stopping()->clear_max_new_tokens();
       r->mutable_prompt_ids()->clear_ids();
       for (int i = 0; i < 8192; ++i) r->mutable_prompt_ids()->add_ids(1);
     },
     "prompt_ids has 8192 tokens; this server's max_model_len is 8192, with at "
     "least one to generate"},
    {"PromptTextTooLong",
     [](auto* r) { r->set_prompt_text(std::string(9000, 'a')); },
     "prompt_text has 9001 tokens; this server's max_model_len is 8192"},
    {"NegativeTemperature",
     [](auto* r) { r->mutable_sampling()->set_temperature(-1); },
     "sampling.temperature is -1; expected 0 to 100"},
    {"NanTemperature",
     [](auto* r) { r->mutable_sampling()->set_temperature(kNaN); },
     "sampling.temperature is nan"},
    {"TopPZero", [](auto* r) { r->mutable_sampling()->set_top_p(0); },
     "sampling.top_p is 0"},
    {"TopPAboveOne", [](auto* r) { r->mutable_sampling()->set_top_p(1.5); },
     "sampling.top_p is 1.5"},
    {"MinP", [](auto* r) { r->mutable_sampling()->set_min_p(-0.5); },
     "sampling.min_p is -0.5"},
    {"RepetitionPenaltyZero",
     [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0); },
     "sampling.repetition_penalty is 0"},
    {"PresencePenalty",
     [](auto* r) { r->mutable_sampling()->set_presence_penalty(3); },
     "sampling.presence_penalty is 3"},
    {"FrequencyPenalty",
     [](auto* r) { r->mutable_sampling()->set_frequency_penalty(-3); },
     "sampling.frequency_penalty is -3"},
    {"LogitBiasId",
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[999] = 1; },
     "sampling.logit_bias key is 999"},
    {"LogitBiasIdBeyondInt32",
     [](auto* r) {
       (*r->mutable_sampling()->mutable_logit_bias())[0xffffffffu] = 1;
     },
     "sampling.logit_bias key is 4294967295; the vocabulary has ids 0 to 257"},
    {"LogitBiasValue",
     [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = 101; },
     "sampling.logit_bias[7] is 101"},
    {"Logprobs", [](auto* r) { r->set_logprobs(21); },
     "logprobs is 21; expected 0 to 20"},
    {"LogprobsBeyondInt32", [](auto* r) { r->set_logprobs(0xffffffffu); },
     "logprobs is 4294967295; expected 0 to 20"},
    {"Priority", [](auto* r) { r->set_priority(-101); }, "priority is -101"},
    {"PriorityOfManyDigits", [](auto* r) { r->set_priority(2147483647); },
     "priority is 2147483647; expected -100 to 100"},
    {"StopTokenId",
     [](auto* r) { r->mutable_stopping()->add_stop_token_ids(258); },
     "stopping.stop_token_ids[0] is 258"},
    {"StopTokenIdBeyondInt32",
     [](auto* r) { r->mutable_stopping()->add_stop_token_ids(0xffffffffu); },
     "stopping.stop_token_ids[0] is 4294967295; the vocabulary has ids 0 to "
     "257"},
    {"TooManyStopTokens",
     [](auto* r) {
       for (int i = 0; i < 65; ++i) {
         r->mutable_stopping()->add_stop_token_ids(1);
       }
     },
     "stopping.stop_token_ids has 65 entries; at most 64"},
    {"EmptyStopString",
     [](auto* r) { r->mutable_stopping()->add_stop_strings(""); },
     "stopping.stop_strings[0] has 0 bytes"},
    {"LongStopString",
     [](auto* r) {
       r->mutable_stopping()->add_stop_strings(std::string(257, 'x'));
     },
     "stopping.stop_strings[0] has 257 bytes"},
    {"TooManyStopStrings",
     [](auto* r) {
       for (int i = 0; i < 17; ++i)
         r->mutable_stopping()->add_stop_strings("x");
     },
     "stopping.stop_strings has 17 entries; at most 16"},
};

INSTANTIATE_TEST_SUITE_P(Requests, BadRequestTest,
                         testing::ValuesIn(kBadRequests),
                         [](const auto& info) { return info.param.name; });

TEST(StatusTest, OversizedMessageIsRefused) {
  TestServer server;
  v1::GenerateRequest request = GreedyRequest({256}, 4);
  request.set_prompt_text(std::string(5 << 20, 'x'));
  const auto outcome = Generate(*server.Connect(), request);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kResourceExhausted);
  server.ExpectIdle();
}

// A megabyte of them may be a thousand of what a message says.
TEST(StatusTest, CompressedMessagesAreRefused) {
  TestServer server;
  v1::GenerateRequest request = GreedyRequest({256}, 4);
  request.set_prompt_text(std::string(8 << 20, 'x'));
  const auto stub = v1::Inference::NewStub(server.Channel());
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const auto stream = stub->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_FALSE(stream->Read(&event));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), testing::HasSubstr("is disabled"));
  }
  server.ExpectIdle();
}

// --- Decode ------------------------------------------------------------------

// Sends commands, each after the one before is done; returns the final status.
absl::Status RunDecode(TestServer& server,
                       const std::vector<v1::DecodeRequest>& commands) {
  const auto stub = v1::Inference::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  for (const v1::DecodeRequest& command : commands) {
    if (!stream->Write(command)) break;
    v1::DecodeResponse response;
    while (stream->Read(&response) && !response.done()) {
    }
    if (!response.done()) break;
  }
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  return {static_cast<absl::StatusCode>(status.error_code()),
          status.error_message()};
}

v1::DecodeRequest Append(const std::vector<uint32_t>& ids, uint32_t generate) {
  v1::DecodeRequest request;
  request.mutable_append_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_generate(generate);
  return request;
}

TEST(StatusTest, BadDecodeCommandsAreRefused) {
  TestServer server;
  const auto expect = [&](const std::vector<v1::DecodeRequest>& commands,
                          const char* message) {
    const absl::Status status = RunDecode(server, commands);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    server.ExpectIdle();
  };
  expect({Append({}, 1)}, "the first command must append");
  expect({Append({1}, 1), Append({}, 0)}, "appends nothing and generates");
  expect({Append({1}, 1), Append({258}, 1)}, "append_ids[0] is 258");
  v1::DecodeRequest long_text;
  long_text.set_append_text(std::string(9000, 'a'));
  expect({long_text}, "append_text has 9001 tokens; this server's");
  expect({Append({1}, 1), long_text},
         "append_text has 9000 tokens after the sequence's 2");
  expect({Append({1}, 1), Append({1}, 8192)},
         "generate is 8192; the sequence would reach 2 + 1 + 8192");
  v1::DecodeRequest with_limit = Append({1}, 1);
  with_limit.mutable_stopping()->set_max_new_tokens(3);
  expect({with_limit}, "max_new_tokens has no place in Decode");
  v1::DecodeRequest with_sampling = Append({1}, 1);
  with_sampling.mutable_sampling()->set_temperature(1);
  expect({Append({1}, 1), with_sampling}, "sampling is set in a later command");
  v1::DecodeRequest with_mode = Append({1}, 1);
  with_mode.set_logits(static_cast<v1::LogitsMode>(7));
  expect({with_mode}, "logits is 7");
  EXPECT_TRUE(RunDecode(server, {}).ok());  // closed without a command
  EXPECT_TRUE(RunDecode(server, {Append({1}, 1), Append({2}, 0)}).ok());
  server.ExpectIdle();
}

// --- RESOURCE_EXHAUSTED ------------------------------------------------------

TEST(StatusTest, FullQueueIsRefusedWithARetryHint) {
  ServerOptions options = DemoOptions();
  options.engine.max_num_seqs = 1;
  options.engine.max_queued_requests = 1;
  TestServer server(options);
  std::atomic<bool> hold = true;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  const auto client = server.Connect();
  std::vector<std::future<GenerateOutcome>> accepted;
  for (int i = 0; i < 2; ++i) {
    accepted.push_back(std::async(std::launch::async, [&] {
      return Generate(*client, GreedyRequest({256, 65}, 4));
    }));
  }
  ASSERT_TRUE(
      WaitFor([&] { return server.server().engine().load().open == 2; }));

  const auto stub = v1::Inference::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, GreedyRequest({256, 65}, 4));
  v1::GenerateEvent event;
  EXPECT_FALSE(stream->Read(&event));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("1 running and 1 waiting"));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto hint = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(hint, trailers.end());
  EXPECT_EQ(hint->second, "1000");
  EXPECT_EQ(RefusedRequests(server, "queue_full"), 1);
  EXPECT_EQ(RefusedRequests(server, "quota"), 0);

  hold = false;
  for (auto& outcome : accepted) EXPECT_TRUE(outcome.get().status.ok());
  server.ExpectIdle();
}

// --- NOT_FOUND ---------------------------------------------------------------

TEST(StatusTest, AbortOfAnUnknownRequestIsNotFound) {
  TestServer server;
  const auto client = server.Connect();
  EXPECT_EQ(client->Abort("0123456789abcdef").code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(client->Abort("nonsense").code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(StatusTest, AbortEndsARunningRequest) {
  TestServer server;
  const auto client = server.Connect();
  absl::Status aborted = absl::UnknownError("not called");
  const absl::Status status = client->Generate(
      GreedyRequest({256, 65}, 8000), [&](const v1::GenerateEvent& event) {
        if (event.has_admitted()) {
          aborted = client->Abort(event.admitted().request_id());
        }
        return true;
      });
  EXPECT_TRUE(aborted.ok()) << aborted;
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  server.ExpectIdle();
}

// --- CANCELLED, DEADLINE_EXCEEDED --------------------------------------------

TEST(StatusTest, CancelAndDeadlineFreeMemoryWithinTwoSteps) {
  // Two, and one that may begin while the message is under way.
  constexpr int64_t kMaxStepsAfter = 3;
  TestServer server;
  // Long for a message, also on a busy machine.
  const absl::Duration step = absl::Milliseconds(Sanitized() ? 500 : 100);
  std::atomic<int64_t> steps_with_work = 0;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    ++steps_with_work;
    absl::SleepFor(step);
    return absl::OkStatus();
  });
  const auto client = server.Connect();
  int64_t at_end = -1;
  const absl::Status cancelled = client->Generate(
      GreedyRequest({256, 65}, 8000), [&](const v1::GenerateEvent& event) {
        if (!event.has_tokens()) return true;
        at_end = steps_with_work.load();
        return false;
      });
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled);
  server.ExpectIdle();
  EXPECT_GT(at_end, 0);
  EXPECT_LE(steps_with_work.load() - at_end, kMaxStepsAfter);

  CallOptions options;
  options.timeout = 4 * step;
  const int64_t before = steps_with_work.load();
  const auto late = Generate(*client, GreedyRequest({256, 65}, 8000), options);
  at_end = steps_with_work.load();
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  server.ExpectIdle();
  EXPECT_GT(at_end, before);
  EXPECT_LE(steps_with_work.load() - at_end, kMaxStepsAfter);
}

TEST(StatusTest, EngineSeesACancelWithinTwoSteps) {
  TestServer server;
  std::atomic<int64_t> steps = 0;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    ++steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return absl::OkStatus();
  });
  class Sink : public EventSink {
   public:
    explicit Sink(std::atomic<int64_t>* steps) : steps_(steps) {}
    void OnAdmitted(double) override {}
    bool OnStep(StepEvent event) override {
      tokens_ = event.index + 1;
      return true;
    }
    void OnCommandDone(CommandResult) override {}
    void OnEnd(absl::Status) override { end_step_ = steps_->load(); }
    std::atomic<int64_t>* const steps_;
    std::atomic<int64_t> tokens_ = 0;
    std::atomic<int64_t> end_step_ = -1;
  };
  Engine& engine = server.server().engine();
  for (int i = 0; i < 20; ++i) {
    const auto sink = std::make_shared<Sink>(&steps);
    const auto id = engine.Submit({{}, {{256, 65}, 8000}, true, sink});
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(WaitFor([&] { return sink->tokens_ > i; }));
    engine.Cancel(*id, absl::CancelledError("test"));
    const int64_t at = steps.load();
    ASSERT_TRUE(WaitFor([&] { return sink->end_step_ >= 0; }));
    EXPECT_LE(sink->end_step_ - at, 2);
  }
  server.ExpectIdle();
}

// --- INTERNAL ----------------------------------------------------------------

TEST(StatusTest, DeviceFailureIsInternalAndTurnsHealthDown) {
  ServerOptions options = DemoOptions();
  options.metrics_port = 0;  // answers until the server is gone
  TestServer server(options);
  const auto client = server.Connect();
  EXPECT_EQ(client->CheckHealth()->status(),
            grpc::health::v1::HealthCheckResponse::SERVING);
  std::atomic<bool> fail = false;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    return fail ? absl::InternalError("error 719: unspecified launch failure")
                : absl::OkStatus();
  });
  int tokens = 0;
  const absl::Status status = client->Generate(
      GreedyRequest({256, 65}, 8000), [&](const v1::GenerateEvent& event) {
        if (event.has_tokens() && ++tokens == 3) fail = true;
        return true;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("error 719"));
  EXPECT_TRUE(WaitFor([&] {
    const auto health = client->CheckHealth();
    return health.ok() &&
           health->status() ==
               grpc::health::v1::HealthCheckResponse::NOT_SERVING;
  }));
  const auto refused = Generate(*client, GreedyRequest({256, 65}, 4));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  const int port = server.server().metrics_port();
  EXPECT_EQ(
      MetricValue(port,
                  "recurve_requests_refused_total{reason=\"device_failed\"}"),
      1);
  EXPECT_EQ(MetricValue(port, "recurve_serving"), 0);
  EXPECT_FALSE(server.server().Wait().ok());
}

TEST(StatusTest, NonFiniteRowFailsItsOwnStreamOnly) {
  TestServer server;
  const auto client = server.Connect();
  const v1::GenerateRequest healthy = GreedyRequest({256, 66}, 200);
  const auto solo = Generate(*client, healthy);
  ASSERT_TRUE(solo.status.ok());
  // The state of the sequence whose prompt is longer breaks down.
  std::atomic<int32_t> victim = 0;
  server.runner().SetBeforeRun(
      [&](const StepBatch& batch, CacheStorage& storage) {
        for (int64_t b = 0; b < batch.num_sequences(); ++b) {
          const int32_t rows = batch.query_start[b + 1] - batch.query_start[b];
          if (rows == 5) victim = batch.slots[b];
        }
        const int32_t slot = victim.exchange(0);
        return slot == 0 ? absl::OkStatus() : storage.PoisonSlot(slot);
      });
  auto other = std::async(std::launch::async,
                          [&] { return Generate(*client, healthy); });
  const auto broken = Generate(*client, GreedyRequest({256, 1, 2, 3, 4}, 200));
  EXPECT_EQ(broken.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(broken.status.message()), HasSubstr("non-finite"));
  const auto outcome = other.get();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.generation.token_ids, solo.generation.token_ids);
  server.ExpectIdle();
  // The slot is clean again for the next one.
  EXPECT_EQ(Generate(*client, healthy).generation.token_ids,
            solo.generation.token_ids);
}

// --- UNAVAILABLE -------------------------------------------------------------

TEST(StatusTest, DrainingServerFinishesWhatRunsAndRefusesTheRest) {
  TestServer server;
  const auto client = server.Connect();
  StepHold hold(server, 20);
  bool drained = false;
  int64_t remaining = 0;
  GenerateOutcome running;
  absl::Status refused;
  running.status = client->Generate(
      GreedyRequest({256, 65}, 500), [&](const v1::GenerateEvent& event) {
        EXPECT_TRUE(running.generation.Add(event).ok());
        if (!drained && event.has_tokens()) {
          drained = true;
          const auto response = client->Drain();
          EXPECT_TRUE(response.ok());
          remaining = response->remaining();
          refused = Generate(*server.Connect(), GreedyRequest({256}, 1)).status;
          EXPECT_EQ(RefusedRequests(server, "draining"), 1);
          EXPECT_EQ(MetricValue(server.server().http_port(), "recurve_serving"),
                    0);
          hold.Open();
        }
        return true;
      });
  EXPECT_TRUE(running.status.ok()) << running.status;
  EXPECT_EQ(running.generation.token_ids.size(), 500);
  EXPECT_EQ(remaining, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(server.server().Wait().ok());
}

TEST(StatusTest, ShutdownTimeoutEndsWhatStillRuns) {
  ServerOptions options = DemoOptions();
  options.shutdown_timeout = std::chrono::milliseconds(200);
  TestServer server(options);
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return absl::OkStatus();
  });
  const auto client = server.Connect();
  bool drained = false;
  const absl::Status status = client->Generate(
      GreedyRequest({256, 65}, 8000), [&](const v1::GenerateEvent& event) {
        if (!drained && event.has_tokens()) {
          drained = true;
          server.server().RequestDrain();
        }
        return true;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(server.server().Wait().ok());
}

}  // namespace
}  // namespace recurve
