// Idle connections of unauthenticated clients: they give way to others, and
// shut out no client.

#include <openssl/ssl.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "server/transport/stranger_bytes.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http2.h"
#include "tests/testing/http2_client.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using testing::HasSubstr;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
const absl::Duration kDeadline = absl::Seconds(20);

class StrangersTest : public testing::Test {
 protected:
  StrangersTest() {
    std::string name = testing::TempDir() + "recurve_strangers_XXXXXX";
    folder_ = mkdtemp(name.data());
    options_ = DemoOptions();
    options_.api_keys_file = Write("keys", KeyLine("good", "right"));
    options_.metrics_port = 0;
    tls_.reset(SSL_CTX_new(TLS_client_method()));
  }
  ~StrangersTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path) << text;
    return path;
  }
  void UseTls() {
    const PemPair pair = authority_.Sign("server");
    options_.transport.tls_cert = Write("server.pem", pair.certificate);
    options_.transport.tls_key = Write("server.key", pair.key);
    secure_ = true;
  }
  void Start() { server_ = std::make_unique<TestServer>(options_); }
  Server& server() { return server_->server(); }
  int grpc_port() { return server().grpc_port(); }

  std::unique_ptr<RecurveClient> KeyedClient() {
    ClientOptions options;
    options.own_connection = true;
    options.api_key = "right";
    options.tls.enabled = secure_;
    if (secure_) options.tls.ca = Write("ca.pem", authority_.certificate());
    return *RecurveClient::Create(server_->address(), options);
  }
  absl::Status Call(RecurveClient& client) {
    return client.GetLoad({.timeout = kDeadline}).status();
  }
  // Connects and waits until the server has it.
  std::unique_ptr<Http2Client> Stranger() {
    auto client = std::make_unique<Http2Client>(grpc_port(),
                                                secure_ ? tls_.get() : nullptr);
    EXPECT_TRUE(client->Settle());
    return client;
  }
  double Displaced() {
    return MetricValue(
        server().metrics_port(),
        "recurve_grpc_connections_ended_total{reason=\"displaced\"}");
  }
  // Expects that the server has ended the connection without an offence.
  static void ExpectDisplaced(Http2Client& client) {
    client.AwaitEnd();
    ASSERT_TRUE(client.go_away());
    EXPECT_EQ(client.go_away()->error, 0);
    EXPECT_THAT(client.go_away()->reason, HasSubstr("no room for others"));
  }

  struct FreeTls {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  const TestAuthority authority_;
  std::unique_ptr<SSL_CTX, FreeTls> tls_;
  std::string folder_;
  bool secure_ = false;
  ServerOptions options_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(StrangersTest, IdleOnesThatFillTheMemoryOfStrangersGiveWay) {
  UseTls();
  constexpr int kRoom = 10;
  // For what a connection writes at first, half a connection's more.
  options_.max_stranger_bytes = kRoom * kTlsConnectionBytes * 3 / 2;
  Start();
  const auto early = KeyedClient();
  ASSERT_EQ(Call(*early), absl::OkStatus());
  std::vector<std::unique_ptr<Http2Client>> idle;
  for (int i = 0; i < 3 * kRoom; ++i) idle.push_back(Stranger());
  ExpectDisplaced(*idle.front());
  // However full it is, also for many.
  for (int i = 0; i < 2 * kRoom; ++i) {
    EXPECT_EQ(Call(*KeyedClient()), absl::OkStatus()) << i;
  }
  EXPECT_GE(Displaced(), kRoom);
  // Who has shown a key stays.
  EXPECT_EQ(Call(*early), absl::OkStatus());
}

// Before the handshake of TLS, too.
TEST_F(StrangersTest, SilentOnesGiveWay) {
  UseTls();
  options_.max_stranger_bytes = 4 * kTlsConnectionBytes;
  Start();
  std::deque<HttpConnection> silent;
  for (int i = 0; i < 12; ++i) silent.emplace_back(grpc_port());
  EXPECT_EQ(silent.front().ReadSome(), "");
  EXPECT_EQ(Call(*KeyedClient()), absl::OkStatus());
}

TEST_F(StrangersTest, TheOldestIdleOneGivesWayToOneConnectionMore) {
  options_.max_grpc_connections = 4;
  Start();
  const auto keyed = KeyedClient();
  ASSERT_EQ(Call(*keyed), absl::OkStatus());
  const auto first = Stranger();
  const auto second = Stranger();
  const auto third = Stranger();
  // A health call restarts its idle time.
  first->Open(1, kCheck);
  ASSERT_TRUE(first->SendData(1, GrpcMessage(""), /*end=*/true));
  EXPECT_EQ(first->Await(1).status(), 0);
  const auto next = KeyedClient();
  EXPECT_EQ(Call(*next), absl::OkStatus());
  ExpectDisplaced(*second);
  const auto last = KeyedClient();
  EXPECT_EQ(Call(*last), absl::OkStatus());
  ExpectDisplaced(*third);
  EXPECT_TRUE(first->Settle());
  EXPECT_EQ(Displaced(), 2);
  // One unknown client is left, and then none: further ones are refused
  // immediately.
  const auto fourth = KeyedClient();
  EXPECT_EQ(Call(*fourth), absl::OkStatus());
  ExpectDisplaced(*first);
  const auto refused = KeyedClient();
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Call(*refused).code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - begin, kDeadline / 2);
  for (const auto& client : {keyed.get(), next.get(), last.get(), fourth.get()})
    EXPECT_EQ(Call(*client), absl::OkStatus());
}

// A Watch has no end: it must not keep its connection for ever.
TEST_F(StrangersTest, OneThatOnlyWatchesHealthGivesWay) {
  options_.max_grpc_connections = 2;
  Start();
  const auto keyed = KeyedClient();
  ASSERT_EQ(Call(*keyed), absl::OkStatus());
  const auto watcher = Stranger();
  for (const uint32_t stream : {1, 3}) {
    watcher->Open(stream, kWatch);
    ASSERT_TRUE(watcher->SendData(stream, GrpcMessage(""), /*end=*/true));
    ASSERT_TRUE(watcher->ReadUntil(
        [&] { return !watcher->answer(stream).data.empty(); }));
  }
  EXPECT_EQ(Call(*KeyedClient()), absl::OkStatus());
  ExpectDisplaced(*watcher);
  // UNAVAILABLE, to gRPC's clients.
  EXPECT_EQ(watcher->answer(1).reset, 7);  // REFUSED_STREAM
  EXPECT_EQ(watcher->answer(3).reset, 7);
}

// What it waits for has an end.
TEST_F(StrangersTest, OneWithACallUnderWayStays) {
  options_.max_grpc_connections = 1;
  Start();
  const auto busy = Stranger();
  busy->Open(1, kCheck);  // its message does not come
  ASSERT_TRUE(busy->Settle());
  EXPECT_EQ(Call(*KeyedClient()).code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(busy->SendData(1, GrpcMessage(""), /*end=*/true));
  EXPECT_EQ(busy->Await(1).status(), 0);
  EXPECT_EQ(Call(*KeyedClient()), absl::OkStatus());
  ExpectDisplaced(*busy);
}

// A client that watches health and calls with a key is known.
TEST_F(StrangersTest, WhoHasAKeyMayWatch) {
  options_.max_grpc_connections = 1;
  Start();
  Http2Client client(grpc_port());
  client.Open(1, kWatch);
  ASSERT_TRUE(client.SendData(1, GrpcMessage(""), /*end=*/true));
  client.Open(3, "/recurve.v1.Control/GetLoad", 0,
              http2::Header("authorization", "Bearer right"));
  ASSERT_TRUE(client.SendData(3, GrpcMessage(""), /*end=*/true));
  EXPECT_EQ(client.Await(3).status(), 0);
  EXPECT_EQ(Call(*KeyedClient()).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(client.Settle());
}

TEST_F(StrangersTest, IdleOnesOverHttpGiveWay) {
  options_.max_stranger_bytes = 4 * kPlainConnectionBytes;
  options_.max_http_connections = 6;
  Start();
  const std::string list =
      HttpRequestText("GET", "/v1/models", "", {"Authorization: Bearer right"});
  HttpConnection keyed(server().http_port());
  ASSERT_TRUE(keyed.Send(list));
  ASSERT_EQ(keyed.Read().status, 200);
  std::deque<HttpConnection> idle;
  for (int i = 0; i < 12; ++i) idle.emplace_back(server().http_port());
  EXPECT_EQ(idle.front().ReadSome(), "");
  // By the limit of memory, and by that of connections.
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Fetch(server().http_port(), list).status, 200) << i;
    EXPECT_EQ(Call(*KeyedClient()), absl::OkStatus()) << i;
  }
  EXPECT_GE(MetricValue(server().metrics_port(),
                        "recurve_http_connections_displaced_total"),
            8);
  ASSERT_TRUE(keyed.Send(list));
  EXPECT_EQ(keyed.Read().status, 200);
}

TEST_F(StrangersTest, AConnectionOverHttpMoreTakesThePlaceOfAnIdleOne) {
  options_.max_http_connections = 2;
  Start();
  const std::string list =
      HttpRequestText("GET", "/v1/models", "", {"Authorization: Bearer right"});
  HttpConnection idle(server().http_port());
  HttpConnection first(server().http_port());
  ASSERT_TRUE(first.Send(list));
  ASSERT_EQ(first.Read().status, 200);
  HttpConnection second(server().http_port());
  ASSERT_TRUE(second.Send(list));
  EXPECT_EQ(second.Read().status, 200);
  EXPECT_EQ(idle.ReadSome(), "");
  // These have a key: one more is refused.
  EXPECT_TRUE(
      WaitFor([&] { return Fetch(server().http_port(), list).status == 503; }));
}

}  // namespace
}  // namespace recurve
