// Health, reflection, metrics and Control, as their public tools see them.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/direct_channel.h"

namespace recurve {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::HasSubstr;

TEST(ServicesTest, HealthWatchFollowsADrain) {
  TestServer server;
  const auto stub = grpc::health::v1::Health::NewStub(server.Channel());
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("recurve.v1.Inference");
  const auto watch = stub->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);

  const auto client = server.Connect();
  // The request goes on when the drain has been looked at.
  StepHold hold(server, 20);
  bool drained = false;
  const absl::Status status = client->Generate(
      GreedyRequest({256, 65}, 100), [&](const v1::GenerateEvent& event) {
        if (!std::exchange(drained, event.has_tokens()) && drained) {
          EXPECT_TRUE(client->Drain().ok());
          EXPECT_TRUE(watch->Read(&response));
          EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
          const auto health = client->CheckHealth();
          EXPECT_TRUE(health.ok() &&
                      health->status() == HealthCheckResponse::NOT_SERVING)
              << health.status();
          hold.Open();
        }
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  context.TryCancel();
  watch->Finish();
}

TEST(ServicesTest, UnknownHealthServiceIsNotFound) {
  TestServer server;
  EXPECT_EQ(server.Connect()->CheckHealth("unknown").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ServicesTest, ReflectionListsTheServices) {
  TestServer server;
  grpc::GenericStub stub(server.Channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  // ServerReflectionRequest{list_services: ""}: field 7, length 0.
  const std::string bytes("\x3a\x00", 2);
  const grpc::Slice slice(bytes);
  const auto call = stub.PrepareCall(
      &context,
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag;
  bool ok;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice whole;
  ASSERT_TRUE(response.DumpToSingleSlice(&whole).ok());
  const std::string text(reinterpret_cast<const char*>(whole.begin()),
                         whole.size());
  for (const char* service : {"recurve.v1.Inference", "recurve.v1.Control",
                              "grpc.health.v1.Health"}) {
    EXPECT_THAT(text, HasSubstr(service));
  }
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST(ServicesTest, AdminAndReflectionCanBeTurnedOff) {
  ServerOptions options = DemoOptions();
  options.admin = options.reflection = false;
  TestServer server(options);
  const auto client = server.Connect();
  const absl::Status drain = client->Drain().status();
  EXPECT_EQ(drain.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(drain.message()), HasSubstr("--admin is off"));
  EXPECT_EQ(client->Abort("0123456789abcdef").code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(client->CheckHealth()->status(), HealthCheckResponse::SERVING);
  EXPECT_TRUE(client->GetServerInfo().ok());
  EXPECT_EQ(CallWithBytes(server.address(),
                          "/grpc.reflection.v1alpha.ServerReflection/"
                          "ServerReflectionInfo",
                          std::string("\x3a\x00", 2))
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(ServicesTest, MetadataIsBounded) {
  TestServer server;
  const auto stub = grpc::health::v1::Health::NewStub(server.Channel());
  for (const auto& [bytes, fits] : {std::pair(1000, true), {20'000, false}}) {
    grpc::ClientContext context;
    context.AddMetadata("x-test", std::string(bytes, 'x'));
    HealthCheckResponse response;
    const grpc::Status status =
        stub->Check(&context, HealthCheckRequest(), &response);
    EXPECT_EQ(status.ok(), fits) << bytes << ": " << status.error_message();
  }
  EXPECT_TRUE(server.Connect()->GetLoad().ok());
}

TEST(ServicesTest, MalformedMessagesAreInvalidArguments) {
  TestServer server;
  for (const char* method :
       {"/recurve.v1.Inference/Generate", "/recurve.v1.Inference/Decode"}) {
    // A field of wire type 7; a string cut short; prompt_text (Generate) or
    // append_text (Decode), field 2, that is not UTF-8.
    for (const char* bytes : {"\x0f", "\x12\x7f", "\x12\x02\xff\xfe"}) {
      const grpc::Status status =
          CallWithBytes(server.address(), method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << method;
      EXPECT_THAT(status.error_message(), HasSubstr("no valid message"));
    }
  }
  server.ExpectIdle();
}

TEST(ServicesTest, MetricsCountWhatRan) {
  TestServer server;
  const auto client = server.Connect();
  ASSERT_TRUE(Generate(*client, GreedyRequest({256, 65, 66}, 10)).status.ok());
  server.ExpectIdle();
  // A step is counted when its streams have been told, the last one of all.
  const int port = server.server().http_port();
  ASSERT_TRUE(WaitFor([&] {
    return MetricValue(port, "recurve_decode_step_seconds_count") == 10;
  }));
  const std::string body = HttpGet(port, "/metrics");
  for (const char* line : {
           "recurve_prompt_tokens_total 3\n",
           "recurve_generation_tokens_total 10\n",
           "recurve_request_success_total{finished_reason=\"length\"} 1\n",
           "recurve_num_requests_running 0\n",
           "recurve_num_requests_waiting 0\n",
           "recurve_num_preemptions_total 0\n",
           "recurve_kv_cache_usage_perc 0\n",
           "recurve_state_slots{state=\"total\"} 32\n",
           "recurve_state_slots{state=\"used\"} 0\n",
           "recurve_tpa_pages{state=\"used\"} 0\n",
           "recurve_time_to_first_token_seconds_count 1\n",
           "recurve_inter_token_latency_seconds_count 9\n",
           "recurve_request_time_per_output_token_seconds_count 1\n",
           "recurve_e2e_request_latency_seconds_count 1\n",
           "recurve_request_queue_time_seconds_count 1\n",
           "recurve_batch_size_count 10\n",
           "recurve_batch_size_bucket{le=\"1024\"} 10\n",
           // As many as a step on a GPU may have.
           "recurve_step_tokens_bucket{le=\"2\"} 9\n",
           "recurve_step_tokens_bucket{le=\"4\"} 10\n",
           "recurve_step_tokens_bucket{le=\"65536\"} 10\n",
           "recurve_decode_step_seconds_count 10\n",
           "recurve_serving 1\n",
           ("recurve_build_info{device=\"cpu\",version=\"" RECURVE_VERSION
            "\"} 1\n"),
           // There before the first of them.
           "recurve_request_failure_total{status=\"INTERNAL\"} 0\n",
           "recurve_requests_refused_total{reason=\"queue_full\"} 0\n",
       }) {
    EXPECT_THAT(body, HasSubstr(line));
  }
}

TEST(ServicesTest, MetricsTellOfTheProcess) {
  TestServer server;
  const int port = server.server().http_port();
  const auto value = [&](const char* name) { return MetricValue(port, name); };
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  EXPECT_NEAR(value("process_start_time_seconds"), now, 300);
  EXPECT_GT(value("process_cpu_seconds_total"), 0);
  EXPECT_LT(value("process_cpu_seconds_total"), 3000);
  // The demo model's weights alone are 10 MB.
  EXPECT_GT(value("process_resident_memory_bytes"), 10e6);
  const double before = value("process_open_fds");
  EXPECT_GE(before, 3);
  std::vector<int> files(100);
  for (int& file : files) file = open("/dev/null", O_RDONLY);
  // Connections of scrapes come and go.
  EXPECT_NEAR(value("process_open_fds"), before + 100, 10);
  for (const int file : files) close(file);
}

TEST(ServicesTest, ControlTellsWhatTheServerIs) {
  TestServer server;
  const auto client = server.Connect();
  const auto model = client->GetModelInfo();
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->name(), "demo");
  EXPECT_EQ(model->family(), "recurve");
  EXPECT_EQ(model->parameters(), 5334272);
  EXPECT_EQ(model->vocab_size(), 258);
  EXPECT_EQ(model->mixers_size(), 6);
  EXPECT_EQ(model->mixers(0), "tpa");
  EXPECT_EQ(model->mixers(1), "linear");
  EXPECT_EQ(model->tokenizer(), "bytes");
  EXPECT_EQ(model->bos_token_id(), 256);
  EXPECT_EQ(model->max_model_len(), 8192);
  EXPECT_FALSE(model->has_max_prompt_tokens());
  // 2 layers · (2·2·4 + 2·64 + 2·64) factors, 4 bytes each.
  EXPECT_EQ(model->cache_bytes_per_token(), 2 * (16 + 256) * 4);
  // 4 heads · 64 · (128 + 64 + 128 + 64) rows, 4 bytes each.
  EXPECT_EQ(model->state_bytes_per_sequence(), 4 * 64 * 384 * 4);
  const auto info = client->GetServerInfo();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->device(), "cpu");
  EXPECT_EQ(info->weight_dtype(), "bfloat16");
  EXPECT_FALSE(info->draining());
}

TEST(ServicesTest, ADrainDoesNotWaitForCallsWithoutASequence) {
  TestServer server;
  const auto stub = v1::Inference::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);  // sends no command
  ASSERT_TRUE(WaitFor(
      [&] { return server.Connect()->GetLoad()->open_streams() == 1; }));
  const auto started = std::chrono::steady_clock::now();
  server.server().RequestDrain();
  EXPECT_TRUE(server.server().Wait().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - started,
            std::chrono::seconds(Sanitized() ? 20 : 10));  // timeout: 45 s
  EXPECT_FALSE(stream->Finish().ok());
}

TEST(ServicesTest, AHungStepTurnsHealthDownUntilItEnds) {
  ServerOptions options = DemoOptions();
  options.step_timeout = std::chrono::milliseconds(200);
  options.metrics_port = 0;
  TestServer server(options);
  std::atomic<bool> hang = true;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    while (hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  const auto client = server.Connect();
  const auto health = [&] { return server.Connect()->CheckHealth()->status(); };
  auto running = std::async(std::launch::async, [&] {
    return Generate(*client, GreedyRequest({256, 65}, 3));
  });
  EXPECT_TRUE(
      WaitFor([&] { return health() == HealthCheckResponse::NOT_SERVING; }));
  // What Prometheus and probes over HTTP see is the same.
  const int port = server.server().metrics_port();
  EXPECT_EQ(MetricValue(port, "recurve_serving"), 0);
  EXPECT_THAT(HttpGet(port, "/health"), HasSubstr(" 503 "));
  hang = false;
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(
      WaitFor([&] { return health() == HealthCheckResponse::SERVING; }));
  EXPECT_EQ(MetricValue(port, "recurve_serving"), 1);
  EXPECT_THAT(HttpGet(port, "/health"), HasSubstr(" 200 "));
}

TEST(ServicesTest, TextThatWasHeldBackComesAtTheEndOfADecodeCall) {
  TestServer server;
  const auto stub = v1::Inference::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request;
  request.set_append_text("def fibonacci(n):\n");
  request.set_generate(10);  // "    return"
  request.mutable_stopping()->add_stop_strings("return XYZ");
  ASSERT_TRUE(stream->Write(request));
  std::string text;
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
    text += response.tokens().text();
    if (response.done()) {
      EXPECT_EQ(text, "    ");  // "return" may still become the stop string
      stream->WritesDone();
    }
  }
  EXPECT_EQ(text, "    return");
  EXPECT_TRUE(stream->Finish().ok());
}

// A client that is merely late must see the status: it is not cut off like one
// that does not read.
TEST(ServicesTest, NoMemoryForLogitsIsSaidToAClientThatReadsLate) {
  TestServer server;
  // Rows of 1 KB, fewer than what pauses a sequence, and more than goes on its
  // way before the client reads.
  constexpr int kSteps = 200;
  std::atomic<int> steps = 0;
  server.runner().SetAfterRun([&](StepOutput* output) {
    if (++steps != kSteps) return;
    // Until what can be sent is.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    output->logits = {};
    output->logits_status = absl::ResourceExhaustedError("no room for logits");
  });
  grpc::ChannelArguments arguments = DirectArguments();
  // 64 KB, and no more by itself.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub =
      v1::Inference::NewStub(DirectChannel(server.address(), arguments));
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request;
  request.mutable_append_ids()->add_ids(256);
  request.set_generate(2 * kSteps);
  request.set_logits(v1::LOGITS_MODE_NEXT);
  request.mutable_stopping()->set_ignore_eos(true);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(WaitFor([&] {
    return server.server().engine().load().open == 0 && steps >= kSteps;
  }));
  v1::DecodeResponse response;
  int rows = 0;
  while (stream->Read(&response)) rows += response.logits_size();
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("no room for logits"));
  EXPECT_EQ(rows, kSteps - 1);
  server.ExpectIdle();
}

TEST(ServicesTest, TextPromptsLogprobsAndStopStringsWork) {
  TestServer server;
  const auto client = server.Connect();
  v1::GenerateRequest request;
  request.set_prompt_text("def fibonacci(n):\n");
  request.mutable_stopping()->set_max_new_tokens(160);
  const auto full = Generate(*client, request);
  ASSERT_TRUE(full.status.ok()) << full.status;
  EXPECT_THAT(full.generation.text, HasSubstr("return np.array"));

  request.mutable_stopping()->add_stop_strings("np.arr");
  request.set_logprobs(2);
  const auto stopped = Generate(*client, request);
  ASSERT_TRUE(stopped.status.ok());
  EXPECT_EQ(stopped.generation.text, "    return ");
  EXPECT_EQ(stopped.generation.end.reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(stopped.generation.end.stop_string(), "np.arr");
  ASSERT_EQ(stopped.generation.logprobs.size(),
            stopped.generation.token_ids.size());
  for (size_t i = 0; i < stopped.generation.token_ids.size(); ++i) {
    const v1::TokenLogprob& logprob = stopped.generation.logprobs[i];
    ASSERT_EQ(logprob.top_size(), 2);
    EXPECT_EQ(logprob.top(0).id(), stopped.generation.token_ids[i]);  // greedy
    EXPECT_FLOAT_EQ(logprob.top(0).logprob(), logprob.logprob());
    EXPECT_LE(logprob.top(1).logprob(), logprob.top(0).logprob());
  }
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
