// API keys through real channels: who gets in, what each may use, and that it
// comes back.

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/generic/generic_stub.h"
#include "recurve/v1/control.grpc.pb.h"
#include "tests/e2e/server_fixture.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::Not;

using DecodeStream =
    grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>;

// A Decode call that has the answer to its first command, and is idle.
struct IdleDecode {
  IdleDecode(v1::Inference::Stub& stub, const std::string& key) {
    context.AddMetadata("authorization", "Bearer " + key);
    stream = stub.Decode(&context);
    v1::DecodeRequest request;
    request.mutable_append_ids()->add_ids(65);
    request.set_generate(1);
    stream->Write(request);
    v1::DecodeResponse response;
    while (stream->Read(&response)) {
      if (response.done()) {
        open = true;
        return;
      }
    }
  }
  // Reads to the end.
  grpc::Status Finish() {
    v1::DecodeResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<DecodeStream> stream;
  bool open = false;
};

// Whether a call without metadata gets a list of the services.
bool ReflectionAnswers(const TestServer& server) {
  grpc::GenericStub stub(server.Channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  // ServerReflectionRequest{list_services: ""}: field 7, length 0.
  const grpc::Slice request(std::string("\x3a\x00", 2));
  const auto call = stub.PrepareCall(
      &context,
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  call->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  const bool answered = queue.Next(&tag, &ok) && ok;
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return answered;
}

class ApiKeysTest : public testing::Test {
 protected:
  ApiKeysTest() {
    std::string name = testing::TempDir() + "recurve_keys_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ApiKeysTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& text) const {
    const std::string path = folder_ + "/keys";
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }
  ServerOptions Options(const std::string& text) const {
    ServerOptions options = DemoOptions();
    options.api_keys_file = Write(text);
    return options;
  }
  static std::unique_ptr<RecurveClient> Connect(const TestServer& server,
                                                const std::string& key) {
    return RecurveClient::Create(server.address(),
                                 {.own_connection = true, .api_key = key})
        .value();
  }
  static absl::Status Run(
      RecurveClient& client,
      const v1::GenerateRequest& request = GreedyRequest({256, 65}, 2)) {
    return Generate(client, request).status;
  }
  // The status of a Generate call, and its retry hint in milliseconds; -1:
  // none.
  struct Refusal {
    grpc::Status status;
    int64_t retry_ms = -1;
  };
  static Refusal RunRaw(const TestServer& server,
                        const v1::GenerateRequest& request,
                        const std::vector<std::string>& headers) {
    const auto stub = v1::Inference::NewStub(server.Channel());
    grpc::ClientContext context;
    for (const std::string& header : headers) {
      context.AddMetadata("authorization", header);
    }
    const auto stream = stub->Generate(&context, request);
    v1::GenerateEvent event;
    while (stream->Read(&event)) {
    }
    Refusal refusal;
    refusal.status = stream->Finish();
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto it = trailers.find("grpc-retry-pushback-ms");
        it != trailers.end()) {
      EXPECT_TRUE(absl::SimpleAtoi(
          absl::string_view(it->second.data(), it->second.size()),
          &refusal.retry_ms));
    }
    return refusal;
  }
  static std::string Metrics(TestServer& server) {
    return HttpGet(server.metrics_port(), "/metrics");
  }

  std::string folder_;
};

TEST_F(ApiKeysTest, EveryCallNeedsAKeyButHealthAndReflection) {
  TestServer server(
      Options(KeyLine("acme", "right") + KeyLine("ops", "boss", "admin=true")));
  for (const std::string key : {"", "wrong"}) {
    const auto client = Connect(server, key);
    const std::string wanted = key.empty() ? "an API key is needed; expected "
                                             "one metadata entry "
                                             "'authorization: Bearer KEY'"
                                           : "the API key is not known";
    const auto decode = [&] {
      const auto stub = v1::Inference::NewStub(server.Channel());
      grpc::ClientContext context;
      if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
      const auto stream = stub->Decode(&context);
      v1::DecodeResponse response;
      EXPECT_FALSE(stream->Read(&response));  // without any command
      const grpc::Status status = stream->Finish();
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
    };
    for (const absl::Status& status :
         {Run(*client), decode(), client->GetModelInfo().status(),
          client->GetServerInfo().status(), client->GetLoad().status(),
          client->Abort("0123456789abcdef"), client->Drain().status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
      EXPECT_EQ(status.message(), wanted);
    }
    EXPECT_TRUE(client->CheckHealth("recurve.v1.Inference").ok());
  }
  EXPECT_TRUE(ReflectionAnswers(server));
  const auto client = Connect(server, "right");
  EXPECT_EQ(Run(*client), absl::OkStatus());
  EXPECT_TRUE(client->GetModelInfo().ok());
  EXPECT_TRUE(client->GetServerInfo().ok());
  EXPECT_TRUE(client->GetLoad().ok());
  IdleDecode decode(*v1::Inference::NewStub(server.Channel()), "right");
  EXPECT_TRUE(decode.open);
  decode.stream->WritesDone();
  EXPECT_TRUE(decode.Finish().ok());
  // One header of the right form, or it is none.
  const auto request = GreedyRequest({256, 65}, 2);
  EXPECT_TRUE(RunRaw(server, request, {"bearer   right"}).status.ok());
  for (const std::vector<std::string>& headers :
       {std::vector<std::string>{"right"},
        {"Basic right"},
        {"Bearer"},
        {"Bearer right", "Bearer right"}}) {
    EXPECT_EQ(RunRaw(server, request, headers).status.error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  const std::string metrics = Metrics(server);
  EXPECT_THAT(metrics,
              HasSubstr("recurve_unauthenticated_requests_total{reason="
                        "\"missing\"} 11\n"));
  EXPECT_THAT(metrics, HasSubstr("{reason=\"unknown\"} 7\n"));
  // Counts Generate and Decode only.
  EXPECT_EQ(RefusedRequests(server, "unauthenticated"), 8);
  EXPECT_THAT(metrics, HasSubstr("recurve_tenant_requests_admitted_total{"
                                 "tenant=\"acme\"} 3\n"));
  EXPECT_THAT(metrics,
              HasSubstr("recurve_tenant_open_streams{tenant=\"acme\"} 0\n"));
  for (const char* key : {"right", "boss", "wrong"}) {
    EXPECT_THAT(metrics, Not(HasSubstr(key)));
  }
}

TEST_F(ApiKeysTest, WithoutAFileAnyoneMayCall) {
  TestServer server;
  EXPECT_EQ(Run(*Connect(server, "")), absl::OkStatus());
  EXPECT_EQ(Run(*Connect(server, "any")), absl::OkStatus());
}

TEST_F(ApiKeysTest, ClientRefusesKeysThatAreNoHeader) {
  for (const char* key : {"a b", "a\nb", "schl\xc3\xbcssel"}) {
    const absl::Status status =
        RecurveClient::Create("127.0.0.1:1", {.api_key = key}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(key)));
  }
}

TEST_F(ApiKeysTest, StreamsAreLimitedAndComeBackOnEveryPath) {
  TestServer server(Options(KeyLine("acme", "key", "max_streams=1") +
                            KeyLine("other", "other") +
                            KeyLine("ops", "boss", "admin=true")));
  const auto client = Connect(server, "key");
  const auto channel = server.Channel();
  const auto stub = v1::Inference::NewStub(channel);
  const auto full = [&] {
    const Refusal refusal =
        RunRaw(server, GreedyRequest({256, 65}, 2), {"Bearer key"});
    EXPECT_EQ(refusal.status.error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(refusal.status.error_message(),
              "tenant acme has 1 streams open; its max_streams is 1");
    EXPECT_EQ(refusal.retry_ms, 1000);
  };
  // A client that is told of the end finds its place free at once.
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Run(*client), absl::OkStatus()) << i;
  }
  {  // closed
    IdleDecode decode(*stub, "key");
    ASSERT_TRUE(decode.open);
    full();
    EXPECT_EQ(Run(*Connect(server, "other")), absl::OkStatus());
    decode.stream->WritesDone();
    EXPECT_TRUE(decode.Finish().ok());
    EXPECT_EQ(Run(*client), absl::OkStatus());
  }
  {  // a command that is refused
    IdleDecode decode(*stub, "key");
    ASSERT_TRUE(decode.open);
    full();
    decode.stream->Write(v1::DecodeRequest());
    EXPECT_EQ(decode.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(Run(*client), absl::OkStatus());
  }
  {  // aborted
    IdleDecode decode(*stub, "key");
    ASSERT_TRUE(decode.open);
    const auto& metadata = decode.context.GetServerInitialMetadata();
    const auto id = metadata.find("recurve-request-id");
    ASSERT_NE(id, metadata.end());
    EXPECT_EQ(Connect(server, "boss")
                  ->Abort(std::string(id->second.data(), id->second.size())),
              absl::OkStatus());
    EXPECT_EQ(decode.Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_EQ(Run(*client), absl::OkStatus());
  }
  // A request that is refused for itself. With the place taken it is not
  // looked at.
  v1::GenerateRequest bad = GreedyRequest({256}, 4);
  bad.mutable_sampling()->set_temperature(-1);
  EXPECT_EQ(Run(*client, bad).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(*client), absl::OkStatus());
  const auto comes_back = [&] {
    return WaitFor([&] { return Run(*client).ok(); }, 30);
  };
  {  // cancelled while idle
    IdleDecode decode(*stub, "key");
    ASSERT_TRUE(decode.open);
    full();
    decode.context.TryCancel();
    EXPECT_EQ(decode.Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(comes_back());
  }
  {  // cancelled before its first command
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer key");
    const auto stream = stub->Decode(&context);
    ASSERT_TRUE(WaitFor([&] {
      return absl::StrContains(
          Metrics(server), "recurve_tenant_open_streams{tenant=\"acme\"} 1\n");
    }));
    full();
    context.TryCancel();
    stream->Finish();
    EXPECT_TRUE(comes_back());
  }
  {  // cancelled while it generates
    const absl::Status status = client->Generate(
        GreedyRequest({256, 65}, 8000),
        [](const v1::GenerateEvent& event) { return !event.has_tokens(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(comes_back());
  }
  {  // past its deadline
    EXPECT_EQ(Generate(*client, GreedyRequest({256, 65}, 8000),
                       {.timeout = absl::Milliseconds(30)})
                  .status.code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(comes_back());
  }
  {  // the connection is gone
    auto lost = Connect(server, "key");
    auto stream =
        lost->StartGenerate(GreedyRequest({256, 65}, 8000),
                            {[](const v1::GenerateEvent&) { return true; },
                             [](const absl::Status&) {}});
    EXPECT_TRUE(
        WaitFor([&] { return server.server().engine().load().open == 1; }));
    stream.reset();
    lost.reset();
    EXPECT_TRUE(comes_back());
  }
  EXPECT_TRUE(
      WaitFor([&] { return server.server().engine().load().open == 0; }));
  const std::string metrics = Metrics(server);
  EXPECT_THAT(metrics,
              HasSubstr("recurve_tenant_open_streams{tenant=\"acme\"} 0\n"));
  EXPECT_THAT(metrics, HasSubstr("reason=\"streams\""));
}

TEST_F(ApiKeysTest, DeviceFailuresGiveStreamsBack) {
  TestServer server(Options(KeyLine("acme", "key", "max_streams=1")));
  server.runner().SetBeforeRun([](const StepBatch&, CacheStorage&) {
    return absl::InternalError("broken");
  });
  EXPECT_EQ(Run(*Connect(server, "key")).code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Metrics(server),
              HasSubstr("recurve_tenant_open_streams{tenant=\"acme\"} 0\n"));
}

// Buckets so slow that what flows in while the test runs does not matter.
TEST_F(ApiKeysTest, TokensAreLimited) {
  const std::string rate = "tokens_per_second=1 token_burst=2000";
  TestServer server(Options(KeyLine("a", "a", rate) + KeyLine("b", "b", rate) +
                            KeyLine("c", "c", rate)));
  {  // prompt and output count
    const auto request = GreedyRequest(RandomPrompt(1, 1190), 10);
    ASSERT_TRUE(RunRaw(server, request, {"Bearer a"}).status.ok());
    const Refusal refusal = RunRaw(server, request, {"Bearer a"});
    EXPECT_EQ(refusal.status.error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(refusal.status.error_message(),
              "tenant a has no budget for 1200 tokens (prompt and maximum "
              "output); its tokens_per_second is 1 with a token_burst "
              "of 2000");
    EXPECT_GT(refusal.retry_ms, 1000);
    EXPECT_LE(refusal.retry_ms, 400'000);
    EXPECT_EQ(RefusedRequests(server, "quota"), 1);
    EXPECT_EQ(RefusedRequests(server, "queue_full"), 0);
    EXPECT_EQ(Run(*Connect(server, "a")), absl::OkStatus());  // there is some
    EXPECT_EQ(Run(*Connect(server, "b")), absl::OkStatus());  // b has its own
    // What can never be served is told so.
    EXPECT_EQ(Run(*Connect(server, "a"), GreedyRequest({256}, 9000)).code(),
              absl::StatusCode::kInvalidArgument);
  }
  {  // what is not generated comes back: at once when a request is refused,
    const auto client = Connect(server, "b");
    v1::GenerateRequest request = GreedyRequest({256, 65}, 1500);
    request.mutable_sampling()->set_temperature(-1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Run(*client, request).code(),
                absl::StatusCode::kInvalidArgument);
    }
    // and in the end when it stops early
    const auto first = Generate(*client, GreedyRequest({256, 65}, 1));
    ASSERT_EQ(first.status, absl::OkStatus());
    request.mutable_sampling()->clear_temperature();
    request.mutable_stopping()->add_stop_token_ids(
        first.generation.token_ids.at(0));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Run(*client, request), absl::OkStatus()) << i;
    }
  }
  {  // every command counts
    const auto channel = server.Channel();
    IdleDecode decode(*v1::Inference::NewStub(channel), "c");
    ASSERT_TRUE(decode.open);
    v1::DecodeRequest request;
    for (uint32_t id : RandomPrompt(2, 1200)) {
      request.mutable_append_ids()->add_ids(id);
    }
    ASSERT_TRUE(decode.stream->Write(request));
    v1::DecodeResponse response;
    do {
      ASSERT_TRUE(decode.stream->Read(&response));
    } while (!response.done());
    decode.stream->Write(request);
    const grpc::Status status = decode.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(),
                HasSubstr("tenant c has no budget for 1200"));
    const auto& trailers = decode.context.GetServerTrailingMetadata();
    EXPECT_NE(trailers.find("grpc-retry-pushback-ms"), trailers.end());
  }
  EXPECT_TRUE(
      WaitFor([&] { return server.server().engine().load().open == 0; }));
  const std::string metrics = Metrics(server);
  EXPECT_THAT(metrics,
              HasSubstr("recurve_tenant_open_streams{tenant=\"c\"} 0"));
  EXPECT_THAT(metrics, HasSubstr("reason=\"tokens\""));
}

// A request that is wrong in itself is told so, whatever quota is left, and is
// not counted as admitted.
TEST_F(ApiKeysTest, OptionsAreLookedAtBeforeQuotas) {
  TestServer server(
      Options(KeyLine("acme", "key", "tokens_per_second=1 token_burst=10")));
  const char kAdmitted[] =
      "recurve_tenant_requests_admitted_total{tenant=\"acme\"}";
  const int port = server.metrics_port();
  v1::GenerateRequest bad = GreedyRequest({256, 65}, 1);
  bad.mutable_sampling()->set_temperature(-1);
  const auto expect_invalid = [&] {
    const Refusal refusal = RunRaw(server, bad, {"Bearer key"});
    EXPECT_EQ(refusal.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    const auto stub = v1::Inference::NewStub(server.Channel());
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer key");
    const auto stream = stub->Decode(&context);
    v1::DecodeRequest command;
    command.mutable_append_ids()->add_ids(65);
    *command.mutable_sampling() = bad.sampling();
    stream->Write(command);
    EXPECT_EQ(stream->Finish().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  };
  expect_invalid();
  EXPECT_LE(MetricValue(port, kAdmitted), 0);
  // More than the burst: a debt of a quarter of an hour.
  const auto client = Connect(server, "key");
  ASSERT_EQ(Run(*client, GreedyRequest(RandomPrompt(1, 1000), 1)),
            absl::OkStatus());
  EXPECT_EQ(Run(*client).code(), absl::StatusCode::kResourceExhausted);
  expect_invalid();
  EXPECT_EQ(MetricValue(port, kAdmitted), 1);
}

TEST_F(ApiKeysTest, TakesChangedKeys) {
  TestServer server(Options(KeyLine("acme", "old")));
  const auto before = Connect(server, "old");
  const auto after = Connect(server, "new");
  EXPECT_EQ(Run(*before), absl::OkStatus());
  EXPECT_EQ(Run(*after).code(), absl::StatusCode::kUnauthenticated);
  IdleDecode decode(*v1::Inference::NewStub(server.Channel()), "old");
  ASSERT_TRUE(decode.open);
  // A bad file in between changes nothing (tests/server/tenants_test.cc).
  Write("acme max_streams=0");
  EXPECT_EQ(Run(*before), absl::OkStatus());
  Write(KeyLine("acme", "new"));
  EXPECT_TRUE(WaitFor([&] { return Run(*after).ok(); }, 60));
  EXPECT_EQ(Run(*before).code(), absl::StatusCode::kUnauthenticated);
  // A stream that is open runs on.
  decode.stream->WritesDone();
  EXPECT_TRUE(decode.Finish().ok());
}

TEST_F(ApiKeysTest, SwitchesAreForAdmins) {
  TestServer server(
      Options(KeyLine("acme", "key") + KeyLine("ops", "boss", "admin=true")));
  const auto client = Connect(server, "key");
  const auto boss = Connect(server, "boss");
  absl::Status aborted;
  const auto outcome = client->Generate(
      GreedyRequest({256, 65}, 8), [&](const v1::GenerateEvent& event) {
        if (event.has_admitted()) {
          aborted = client->Abort(event.admitted().request_id());
        }
        return true;
      });
  EXPECT_EQ(outcome, absl::OkStatus());
  EXPECT_EQ(aborted.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(aborted.message(),
            "tenant acme is no admin; Abort and Drain need one");
  EXPECT_EQ(client->Drain().status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(server.server().engine().draining());
  EXPECT_THAT(Metrics(server), HasSubstr("reason=\"admin\""));
  EXPECT_EQ(boss->Abort("0123456789abcdef").code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(boss->Drain().ok());
  EXPECT_TRUE(server.server().engine().draining());
}

}  // namespace
}  // namespace recurve
