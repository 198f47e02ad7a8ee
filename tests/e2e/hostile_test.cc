// Clients that mean harm, over gRPC and HTTP, against a server process: it
// stays up, answers them with the right status, gives every slot back, and its
// memory stays where it was.
//
// RECURVE_HOSTILE_ROUNDS says how often all of it is done (default 2). A round
// has 260 connects and 130 cancels on each port.

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/direct_channel.h"
#include "tests/testing/http2.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process.h"
#include "tests/testing/program_paths.h"

namespace recurve {
namespace {

using testing::HasSubstr;

constexpr char kPath[] = "/v1/completions";
constexpr char kKey[] = "Authorization: Bearer right";
constexpr char kLong[] =
    "{\"prompt\":\"a\",\"max_tokens\":8000,\"ignore_eos\":true,\"stream\":"
    "true}";
// Many bytes a token: what is not read soon fills all buffers.
constexpr char kWide[] =
    "{\"prompt\":\"a\",\"max_tokens\":8000,\"ignore_eos\":true,\"stream\":true,"
    "\"logprobs\":20}";
constexpr char kShort[] =
    "{\"prompt\":\"a\",\"max_tokens\":4,\"ignore_eos\":true,"
    "\"temperature\":0}";

using http2::Frame;
using http2::Header;
using http2::OpenStream;
using http2::Preface;

int Rounds() {
  return std::max(
      2, std::atoi(FromEnvironment("RECURVE_HOSTILE_ROUNDS", "2").c_str()));
}

class HostileTest : public testing::Test {
 protected:
  HostileTest() {
    std::string name = testing::TempDir() + "recurve_hostile_XXXXXX";
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ + "/keys") << KeyLine("good", "right");
    // AddressSanitizer keeps freed memory back, and every call stack that it
    // ever met: of those through libraries without frame pointers it meets ever
    // new ones, beyond their first two frames. Both would look like a leak.
    const char* asan = std::getenv("ASAN_OPTIONS");
    const char* stacks = Rounds() > 2 ? ":malloc_context_size=2" : "";
    server_ = std::make_unique<Process>(
        std::vector<std::string>{
            (RECURVE_BINARY_DIR "/bin/recurve-server"), "--model",
            (RECURVE_SOURCE_DIR "/deploy/models/demo"), "--device", "cpu",
            "--grpc-port", "0", "--http-port", "0", "--metrics-port", "0",
            "--num-threads", "2", "--max-num-seqs", "8",
            "--max-queued-requests", "64", "--max-http-connections", "300",
            "--stalled-client-timeout",
            // A server that gets no time of a busy
            // machine takes it for its client's doing.
            Sanitized() ? "2" : "0.5", "--max-buffered-tokens", "8",
            "--api-keys-file", folder_ + "/keys"},
        std::vector<std::string>{
            absl::StrCat(
                "ASAN_OPTIONS=", asan != nullptr ? asan : "",
                ":quarantine_size_mb=4:thread_local_quarantine_size_kb=64",
                stacks),
            // So does malloc, in an arena for each thread that it meets.
            "MALLOC_ARENA_MAX=2"});
    const auto port = [](const std::string& address) {
      return std::atoi(address.substr(address.find(':') + 1).c_str());
    };
    grpc_address_ = server_->GrpcAddress();
    grpc_port_ = port(grpc_address_);
    http_port_ = port(server_->Address("http"));
    metrics_port_ = port(server_->Address("metrics"));
  }
  ~HostileTest() override { std::filesystem::remove_all(folder_); }

  HttpResult Post(const std::string& body,
                  const std::vector<std::string>& headers = {kKey}) const {
    return Fetch(http_port_, PostText(kPath, body, headers));
  }
  std::unique_ptr<RecurveClient> Client() const {
    ClientOptions options;
    options.own_connection = true;
    options.api_key = "right";
    return *RecurveClient::Create(grpc_address_, options);
  }
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments = DirectArguments();
    // A connection of its own, which takes little that it does not read.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16384);
    return DirectChannel(grpc_address_, arguments);
  }
  static void AddKey(grpc::ClientContext& context) {
    context.AddMetadata("authorization", "Bearer right");
  }

  // Calls that were let in so far. Over HTTP or gRPC.
  double Admitted() const {
    return MetricValue(
        metrics_port_,
        "recurve_tenant_requests_admitted_total{tenant=\"good\"}");
  }
  // What was sent may be long on its way to a busy server: before it has
  // arrived, nothing is open.
  void AwaitAdmitted(double count) const {
    ASSERT_TRUE(WaitFor([&] { return Admitted() >= count; })) << Admitted();
  }
  // Waits until no stream is open.
  void AwaitGone() const {
    const auto client = Client();
    ASSERT_TRUE(WaitFor([&] {
      const auto load = client->GetLoad();
      return load.ok() && load->open_streams() == 0;
    }));
  }

  // The server does what it did at first, and nothing is left of what was done
  // to it.
  void ExpectWell(const std::string& after) {
    SCOPED_TRACE(after);
    const auto client = Client();
    ExpectNothingLeft(*client);
    HttpResult http;
    // Connections that the server has not seen closed yet may still count.
    EXPECT_TRUE(WaitFor([&] {
      http = Post(kShort);
      return http.status != 503 && http.status != 0;
    })) << http.status;
    EXPECT_EQ(http.status, 200) << http.body;
    const auto outcome = Generate(*client, GreedyRequest({256, 97}, 4));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    const std::string text =
        "\"text\":\"" + absl::CEscape(outcome.generation.text) + "\"";
    EXPECT_THAT(http.body, HasSubstr(text));
    EXPECT_TRUE(server_->Running()) << server_->Err();
  }

 public:  // for the table of them
  void HttpConnectsAndLeaves();
  void HttpMalformed();
  void HttpFloods();
  void HttpSlowClients();
  void GrpcConnectsAndCancels();
  void GrpcOversized();
  void GrpcSlowReaders();
  void Http2Floods();
  void BadKeys();

 protected:
  std::string folder_;
  std::unique_ptr<Process> server_;
  std::string grpc_address_;
  int grpc_port_ = 0;
  int http_port_ = 0;
  int metrics_port_ = 0;
  int round_ = 0;
};

void HostileTest::HttpConnectsAndLeaves() {
  for (int i = 0; i < 130; ++i) HttpConnection connection(http_port_);
  const std::string request = PostText(kPath, kLong, {kKey});
  for (int i = 0; i < 130; ++i) {
    HttpConnection connection(http_port_);
    // Cut anywhere, or whole; read a little, or not at all.
    const size_t cut =
        Philox4x32(1, static_cast<uint64_t>(i), round_)[0] % request.size();
    connection.Send(i % 2 == 0 ? request.substr(0, cut) : request);
    if (i % 8 == 3) connection.ReadSome();
    if (i % 3 == 0) connection.HalfClose();
    if (i % 3 == 1) connection.Reset();
  }
}

void HostileTest::HttpMalformed() {
  const auto status = [&](const std::string& text) {
    return Fetch(http_port_, text).status;
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  const std::string json = "Content-Type: application/json\r\n";
  const std::string key = std::string(kKey) + "\r\n";
  EXPECT_EQ(status("GET /" + std::string(100'000, 'a')), 431);  // no end
  EXPECT_EQ(status(post + "X: " + std::string(9000, 'x') + "\r\n\r\n"), 431);
  std::string many = post;
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&many, "A: b\r\n");
  EXPECT_EQ(status(many), 431);
  EXPECT_EQ(status(post + json + key + "Content-Length: 4194305\r\n\r\n"), 413);
  EXPECT_EQ(status(post + json + key + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status(post + json + key +
                   "Content-Length: 99999999999999999999999\r\n\r\n"),
            400);
  // Two opinions of where a request ends.
  EXPECT_EQ(status(post + json + key +
                   "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "2\r\n{}\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(status(post + json + key +
                   "Content-Length: 2\r\n"
                   "Content-Length: 3\r\n\r\n{}"),
            400);
  EXPECT_EQ(
      status(post + json + key + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
      400);
  EXPECT_THAT(status(post + json + key +
                     "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"),
              testing::AnyOf(400, 413));
  EXPECT_EQ(status(Preface()), 400);
  EXPECT_EQ(status(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9) +
                   std::string(500, '\0')),
            400);
  EXPECT_EQ(status(std::string(3000, '\xff') + "\r\n\r\n"), 400);
  // A body in chunks that goes beyond the limit, sent to the end.
  {
    HttpConnection connection(http_port_);
    connection.Send(post + json + key + "Transfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "10000\r\n" + std::string(65536, ' ') + "\r\n";
    for (int i = 0; i < 80 && connection.Send(chunk); ++i) {
    }
    EXPECT_EQ(connection.Read().status, 413);
  }
  EXPECT_EQ(Post(std::string(100'000, '[')).status, 400);
  EXPECT_EQ(Post("{\"prompt\":[" + std::string(100'000, '1') + "]}").status,
            400);
  EXPECT_EQ(Post("{\"prompt\":\"" + std::string(100'000, 'a') + "\"}").status,
            400);
}

void HostileTest::HttpFloods() {
  // Requests without end, answers not read: the server stops to read.
  HttpConnection flood(http_port_);
  std::string requests;
  for (int i = 0; i < 200; ++i) requests += HttpRequestText("GET", "/health");
  for (int i = 0; i < 10; ++i) flood.Send(requests);
  EXPECT_EQ(flood.Read().status, 200);
  flood.Reset();
  // More connections than the limit, with a key: idle ones of unknown clients
  // give way. Established ones are served.
  const std::string list = HttpRequestText("GET", "/v1/models", "", {kKey});
  std::vector<std::unique_ptr<HttpConnection>> held;
  int refused = 0;
  for (int i = 0; i < 320; ++i) {
    auto connection = std::make_unique<HttpConnection>(http_port_);
    connection->Send(list);
    const int status = connection->Read().status;
    if (status == 200) {
      held.push_back(std::move(connection));
    } else {
      EXPECT_TRUE(status == 503 || status == 0) << status;
      ++refused;  // was told and is closed
    }
  }
  EXPECT_GE(refused, 20);
  EXPECT_LE(refused, 60);
  for (const auto& connection : held) {
    ASSERT_TRUE(connection->Send(list));
    EXPECT_EQ(connection->Read().status, 200);
  }
}

void HostileTest::HttpSlowClients() {
  const double before = std::max(Admitted(), 0.0);
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < 12; ++i) {  // more than there are slots
    held.push_back(std::make_unique<HttpConnection>(http_port_));
    held.back()->SetReceiveBuffer(4096);
    held.back()->Send(PostText(kPath, kWide, {kKey}));
  }
  for (int i = 0; i < 100; ++i) {  // a byte, and then nothing
    held.push_back(std::make_unique<HttpConnection>(http_port_));
    held.back()->Send("P");
  }
  // They delay no other client: each of these readers is disconnected
  // eventually.
  AwaitAdmitted(before + 12);
  EXPECT_EQ(Post(kShort).status, 200);
  AwaitGone();
}

void HostileTest::GrpcConnectsAndCancels() {
  for (int i = 0; i < 130; ++i) HttpConnection connection(grpc_port_);
  for (int i = 0; i < 130; ++i) {
    HttpConnection connection(grpc_port_);
    std::string bytes = Preface() + OpenStream(1);
    bytes.resize(Philox4x32(2, static_cast<uint64_t>(i), round_)[0] %
                 (bytes.size() + 1));
    connection.Send(bytes);
    if (i % 3 == 0) connection.HalfClose();
    if (i % 3 == 1) connection.Reset();
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      auto channel = Channel();
      for (int i = t; i < 130; i += 2) {
        if (i % 10 == t) channel = Channel();
        const auto stub = v1::Inference::NewStub(channel);
        grpc::ClientContext context;
        AddKey(context);
        if (i % 3 == 0) {
          const auto stream =
              stub->Generate(&context, GreedyRequest({256, 65}, 8000));
          v1::GenerateEvent event;
          for (int n = i % 5; n > 0 && stream->Read(&event); --n) {
          }
          context.TryCancel();
          EXPECT_FALSE(stream->Finish().ok());
          continue;
        }
        const auto stream = stub->Decode(&context);
        v1::DecodeRequest request;
        request.mutable_append_ids()->add_ids(256);
        request.set_generate(5);
        stream->Write(request);
        if (i % 3 == 1) {  // half-closed: what was asked for is answered
          stream->WritesDone();
          v1::DecodeResponse response;
          while (stream->Read(&response)) {
          }
          const grpc::Status status = stream->Finish();
          EXPECT_TRUE(status.ok())
              << status.error_code() << " " << status.error_message();
        } else {
          context.TryCancel();
          stream->Finish();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void HostileTest::GrpcOversized() {
  const auto expect = [&](const v1::GenerateRequest& request, size_t metadata,
                          grpc::StatusCode code) {
    // A channel for each: metadata that are too large cost the connection.
    const auto stub = v1::Inference::NewStub(Channel());
    grpc::ClientContext context;
    AddKey(context);
    if (metadata > 0) {
      context.AddMetadata("x-large", std::string(metadata, 'x'));
    }
    const auto stream = stub->Generate(&context, request);
    v1::GenerateEvent event;
    while (stream->Read(&event)) {
    }
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
  };
  v1::GenerateRequest request = GreedyRequest({256}, 4);
  expect(request, 20'000, grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_prompt_text(std::string(5 << 20, 'a'));
  expect(request, 0, grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_prompt_text(std::string(3 << 20, 'a'));
  expect(request, 0, grpc::StatusCode::INVALID_ARGUMENT);
}

void HostileTest::GrpcSlowReaders() {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<
      grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>>
      streams;
  const auto channel = Channel();
  const auto stub = v1::Inference::NewStub(channel);
  const double before = std::max(Admitted(), 0.0);
  for (int i = 0; i < 12; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    AddKey(*contexts.back());
    streams.push_back(stub->Decode(contexts.back().get()));
    v1::DecodeRequest request;
    request.mutable_append_ids()->add_ids(256);
    request.set_generate(4000);
    request.set_logits(v1::LOGITS_MODE_NEXT);
    request.mutable_stopping()->set_ignore_eos(true);
    streams.back()->Write(request);
  }
  AwaitAdmitted(before + 12);
  if (!HasFatalFailure()) AwaitGone();
  // One that is not cut off would wait for its next command for ever.
  if (HasFatalFailure()) return;
  for (const auto& stream : streams) {
    v1::DecodeResponse response;
    while (stream->Read(&response)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

void HostileTest::Http2Floods() {
  {  // pings: sent away (GOAWAY, or closed under it)
    HttpConnection connection(grpc_port_);
    connection.Send(Preface());
    std::string pings;
    for (int i = 0; i < 1000; ++i) pings += Frame(6, 0, 0, "12345678");
    for (int i = 0; i < 20 && connection.Send(pings); ++i) {
    }
    std::string read;
    for (std::string more; !(more = connection.ReadSome()).empty();) {
      read += more;
      if (read.size() > 10'000'000) break;
    }
    EXPECT_LT(read.size(), 10'000'000);
  }
  {  // empty settings
    HttpConnection connection(grpc_port_);
    connection.Send(Preface());
    std::string settings;
    for (int i = 0; i < 1000; ++i) settings += Frame(4, 0, 0, "");
    for (int i = 0; i < 10 && connection.Send(settings); ++i) {
    }
  }
  {  // streams opened and reset at once
    HttpConnection connection(grpc_port_);
    connection.Send(Preface());
    uint32_t stream = 1;
    std::string frames;
    for (int i = 0; i < 500; ++i, stream += 2) {
      frames += OpenStream(stream) + Frame(3, 0, stream, std::string(4, '\0'));
    }
    connection.Send(frames);
    connection.ReadSome();
  }
  {  // headers that never end
    HttpConnection connection(grpc_port_);
    std::string frames = Preface() + Frame(1, 0, 1, Header(":method", "POST"));
    for (int i = 0; i < 2000; ++i) {
      frames += Frame(9, 0, 1, Header("x", std::string(100, 'x')));
    }
    connection.Send(frames);
  }
  {  // a frame larger than allowed, and nonsense
    HttpConnection connection(grpc_port_);
    connection.Send(Preface() + std::string("\xff\xff\xff\x00\x00", 5) +
                    std::string(100'000, 'x'));
    HttpConnection other(grpc_port_);
    other.Send(std::string(100'000, '\xaa'));
  }
}

void HostileTest::BadKeys() {
  for (int i = 0; i < 50; ++i) {
    const std::string key = absl::StrCat("Bearer right", i);
    EXPECT_EQ(Post(kShort, {"Authorization: " + key}).status, 401);
    const auto stub = v1::Inference::NewStub(DirectChannel(grpc_address_));
    grpc::ClientContext context;
    context.AddMetadata("authorization", key);
    const auto stream = stub->Generate(&context, GreedyRequest({256}, 4));
    v1::GenerateEvent event;
    EXPECT_FALSE(stream->Read(&event));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
}

TEST_F(HostileTest, TheServerStaysUpAndItsMemoryFlat) {
  const int rounds = Rounds();
  const std::pair<const char*, void (HostileTest::*)()> attacks[] = {
      {"HttpConnectsAndLeaves", &HostileTest::HttpConnectsAndLeaves},
      {"HttpMalformed", &HostileTest::HttpMalformed},
      {"HttpFloods", &HostileTest::HttpFloods},
      {"HttpSlowClients", &HostileTest::HttpSlowClients},
      {"GrpcConnectsAndCancels", &HostileTest::GrpcConnectsAndCancels},
      {"GrpcOversized", &HostileTest::GrpcOversized},
      {"GrpcSlowReaders", &HostileTest::GrpcSlowReaders},
      {"Http2Floods", &HostileTest::Http2Floods},
      {"BadKeys", &HostileTest::BadKeys},
  };
  int64_t first = 0;
  for (round_ = 0; round_ < rounds; ++round_) {
    for (const auto& [name, attack] : attacks) {
      {
        SCOPED_TRACE(name);
        (this->*attack)();
      }
      ExpectWell(name);
      if (HasFailure()) {
        FAIL() << name << " in round " << round_ << "\n" << server_->Err();
      }
    }
    std::printf("round %2d: %6.1f MiB, %lld threads, %lld files\n", round_,
                static_cast<double>(server_->MemoryBytes()) / (1 << 20),
                static_cast<long long>(server_->Threads()),
                static_cast<long long>(server_->OpenFiles()));
    std::fflush(stdout);
    // The first rounds find the most that is needed at a time.
    if (round_ == std::min(2, rounds - 2)) first = server_->MemoryBytes();
  }
  const int64_t grown = server_->MemoryBytes() - first;
  std::printf("memory: %lld bytes after the first rounds, %lld more after %d\n",
              static_cast<long long>(first), static_cast<long long>(grown),
              rounds);
  EXPECT_LT(grown, 96 << 20);
  // And it ends well: with AddressSanitizer, without a leak.
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 0) << server_->Err();
}

}  // namespace
}  // namespace recurve
