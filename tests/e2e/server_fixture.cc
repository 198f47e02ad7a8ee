#include "tests/e2e/server_fixture.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "grpcpp/generic/generic_stub.h"
#include "server/tenants/api_keys.h"
#include "tests/testing/direct_channel.h"

namespace recurve {

StepHold::StepHold(TestServer& server, int64_t steps) {
  const auto seen = std::make_shared<std::atomic<int64_t>>(0);
  server.runner().SetBeforeRun(
      [steps, seen, go_on = promise_.get_future().share()](const StepBatch&,
                                                           CacheStorage&) {
        if (++*seen > steps) go_on.wait();
        return absl::OkStatus();
      });
}

void StepHold::Open() {
  if (!std::exchange(open_, true)) promise_.set_value();
}

ServerOptions DemoOptions() {
  ServerOptions options;
  options.model.path = RECURVE_SOURCE_DIR "/deploy/models/demo";
  options.model.num_threads = 2;
  options.model.device = "cpu";  // the goldens are its own, to the bit
  // Two of the longest sequences. A pool of the default size, 570 MB, would be
  // most of the time of a test: each starts a server, and clears it.
  options.model.kv_pages = 256;
  options.grpc_port = 0;
  options.http_port = 0;
  options.engine.poison_released = true;
  // A sanitizer build on a busy machine takes a while to finish a request.
  options.shutdown_timeout = std::chrono::minutes(5);
  return options;
}

TestServer::TestServer(ServerOptions options)
    : TestServer(std::move(options), nullptr) {}

TestServer::TestServer(ServerOptions options, const ChangeTokenizer& change) {
  absl::StatusOr<LoadedModel> model = LoadModel(options.model, &options.engine);
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    std::abort();
  }
  // With keys the API's port gives them to admins alone.
  if (!options.api_keys_file.empty() && options.metrics_port < 0) {
    options.metrics_port = 0;
  }
  auto runner = std::make_unique<FaultyRunner>(std::move(model->runner));
  runner_ = runner.get();
  model->runner = std::move(runner);
  if (change) model->tokenizer = change(std::move(model->tokenizer));
  auto server = Server::Start(options, *std::move(model));
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  server_ = *std::move(server);
}

std::string TestServer::address() const {
  return absl::StrCat("127.0.0.1:", server_->grpc_port());
}

int TestServer::metrics_port() const {
  const int own = server_->metrics_port();
  return own >= 0 ? own : server_->http_port();
}

std::unique_ptr<RecurveClient> TestServer::Connect() const {
  ClientOptions options;
  options.own_connection = true;
  return *RecurveClient::Create(address(), options);
}

std::shared_ptr<grpc::Channel> TestServer::Channel() const {
  return DirectChannel(address());
}

void TestServer::ExpectIdle() {
  const auto client = Connect();
  v1::Load load;
  const bool idle = WaitFor([&] {
    const auto now = client->GetLoad();
    if (now.ok()) load = *now;
    return now.ok() && server_->engine().load().open == 0 &&
           load.open_streams() == 0;
  });
  EXPECT_TRUE(idle) << load.ShortDebugString();
  EXPECT_EQ(load.num_requests_running(), 0);
  EXPECT_EQ(load.num_requests_waiting(), 0);
  EXPECT_EQ(load.state_slots_used(), 0);
  EXPECT_EQ(load.tpa_pages_used(), 0);
}

void ExpectNothingLeft(RecurveClient& client) {
  v1::Load load;
  EXPECT_TRUE(WaitFor([&] {
    const auto now = client.GetLoad();
    if (now.ok()) load = *now;
    return now.ok() && load.open_streams() == 0 &&
           load.num_requests_running() == 0 &&
           load.num_requests_waiting() == 0 && load.state_slots_used() == 0 &&
           load.tpa_pages_used() == 0;
  })) << load.ShortDebugString();
}

std::string KeyLine(const std::string& name, const std::string& key,
                    const std::string& more) {
  const KeyDigest digest = DigestOfKey(key);
  return absl::StrCat(
      name, " sha256=",
      absl::BytesToHexString(absl::string_view(
          reinterpret_cast<const char*>(digest.data()), digest.size())),
      " ", more, "\n");
}

double MetricValue(int http_port, const std::string& name) {
  const std::string text = HttpGet(http_port, "/metrics");
  const size_t at = text.find("\n" + name + " ");
  double value = -1;
  if (at == std::string::npos) return value;
  const size_t begin = at + name.size() + 2;
  (void)absl::SimpleAtod(text.substr(begin, text.find('\n', begin) - begin),
                         &value);
  return value;
}

double RefusedRequests(TestServer& server, const std::string& reason) {
  return MetricValue(
      server.metrics_port(),
      "recurve_requests_refused_total{reason=\"" + reason + "\"}");
}

GenerateOutcome Generate(RecurveClient& client,
                         const v1::GenerateRequest& request,
                         const CallOptions& options) {
  GenerateOutcome outcome;
  outcome.status = client.Generate(
      request,
      [&](const v1::GenerateEvent& event) {
        EXPECT_TRUE(outcome.generation.Add(event).ok());
        return true;
      },
      options);
  if (outcome.status.ok()) {
    EXPECT_TRUE(outcome.generation.CheckFinished().ok());
  }
  return outcome;
}

grpc::Status CallWithBytes(const std::string& address,
                           const std::string& method,
                           const std::string& bytes) {
  grpc::GenericStub stub(DirectChannel(address));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag;
  bool ok;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

v1::GenerateRequest GreedyRequest(const std::vector<uint32_t>& prompt,
                                  uint32_t max_new_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->mutable_ids()->Add(prompt.begin(),
                                                   prompt.end());
  request.mutable_stopping()->set_max_new_tokens(max_new_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

std::vector<uint32_t> RandomPrompt(uint64_t seed, int64_t count) {
  std::vector<uint32_t> ids = {256};
  for (int64_t i = 1; i < count; ++i) {
    ids.push_back(Philox4x32(seed, static_cast<uint64_t>(i), 1)[0] % 256);
  }
  return ids;
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string body;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    const std::string request = "GET " + path +
                                " HTTP/1.1\r\nHost: localhost\r\n"
                                "Connection: close\r\n\r\n";
    EXPECT_EQ(send(fd, request.data(), request.size(), 0), request.size());
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0)
      body.append(buffer, n);
  }
  close(fd);
  return body;
}

bool Sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  return false;
#endif
}

bool WaitFor(const std::function<bool()>& condition, double seconds) {
  const auto deadline =
      std::chrono::steady_clock::now() +
      std::chrono::duration<double>(seconds * (Sanitized() ? 10 : 1));
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace recurve
