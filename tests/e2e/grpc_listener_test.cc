// Connections of gRPC: more than the server takes or the system lets it have,
// and the addresses that they come to.

#include "server/grpc_listener.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/e2e/server_fixture.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process.h"

namespace recurve {
namespace {

using testing::HasSubstr;

// Whether `address` of this machine takes a connection; -1: the machine has no
// such address.
int CanConnect(const char* address, int port) {
  sockaddr_in v4 = {};
  sockaddr_in6 v6 = {};
  const bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  if (!is_v4) inet_pton(AF_INET6, address, &v6.sin6_addr);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  const auto* to = is_v4 ? reinterpret_cast<sockaddr*>(&v4)
                         : reinterpret_cast<sockaddr*>(&v6);
  const int fd = socket(to->sa_family, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  const int result = connect(fd, to, is_v4 ? sizeof(v4) : sizeof(v6));
  const int error = errno;
  close(fd);
  if (result == 0) return 1;
  return error == EADDRNOTAVAIL || error == ENETUNREACH ? -1 : 0;
}

TEST(GrpcListenerTest, ListensOnEveryAddressOfAName) {
  GrpcListenerOptions options;
  const auto listens = [&](const std::string& host, const char* address) {
    options.host = host;
    const auto listener = GrpcListener::Listen(options);
    if (!listener.ok()) {
      ADD_FAILURE() << host << ": " << listener.status();
      return 0;
    }
    return CanConnect(address, (*listener)->port());
  };
  EXPECT_EQ(listens("127.0.0.1", "127.0.0.1"), 1);
  EXPECT_EQ(listens("localhost", "127.0.0.1"), 1);
  if (listens("127.0.0.1", "::1") == -1) GTEST_SKIP() << "no IPv6 here";
  EXPECT_EQ(listens("127.0.0.1", "::1"), 0);
  EXPECT_EQ(listens("::1", "::1"), 1);
  EXPECT_EQ(listens("[::1]", "::1"), 1);
  EXPECT_EQ(listens("::1", "127.0.0.1"), 0);
  // All of them, in whatever family they are written.
  for (const char* all : {"0.0.0.0", "::"}) {
    EXPECT_EQ(listens(all, "127.0.0.1"), 1) << all;
    EXPECT_EQ(listens(all, "::1"), 1) << all;
  }
}

TEST(GrpcListenerTest, APortHasOneListener) {
  GrpcListenerOptions options;
  options.host = "127.0.0.1";
  auto first = *GrpcListener::Listen(options);
  options.port = first->port();
  const auto second = GrpcListener::Listen(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen for gRPC on 127.0.0.1:" +
                        std::to_string(options.port) + ": Address already"));
  first.reset();
  EXPECT_TRUE(GrpcListener::Listen(options).ok());
}

TEST(GrpcListenerTest, MoreConnectionsThanAllowedAreClosed) {
  ServerOptions options = DemoOptions();
  options.max_grpc_connections = 3;
  TestServer server(options);
  const int port = server.server().grpc_port();
  const auto metric = [&](const std::string& name) {
    return MetricValue(server.server().http_port(),
                       "recurve_grpc_connections" + name);
  };
  EXPECT_EQ(metric("{state=\"total\"}"), 3);
  EXPECT_EQ(metric("{state=\"used\"}"), 0);
  EXPECT_EQ(metric("_refused_total"), 0);
  {
    HttpConnection held[3] = {HttpConnection(port), HttpConnection(port),
                              HttpConnection(port)};
    // The server speaks first.
    for (HttpConnection& connection : held) {
      EXPECT_NE(connection.ReadSome(), "");
    }
    for (int i = 0; i < 5; ++i) {
      HttpConnection more(port);
      EXPECT_EQ(more.ReadSome(), "");
    }
    EXPECT_EQ(metric("{state=\"used\"}"), 3);
    EXPECT_EQ(metric("_refused_total"), 5);
    // Other files get the descriptors of what was closed.
    for (int i = 0; i < 5; ++i) {
      EXPECT_THAT(HttpGet(server.server().http_port(), "/health"),
                  HasSubstr("SERVING"));
    }
    EXPECT_FALSE(server.Connect()->GetLoad().ok());
  }
  // Without anybody who connects.
  EXPECT_TRUE(WaitFor([&] { return metric("{state=\"used\"}") == 0; }));
  // What is gone takes no place, however often.
  for (int i = 0; i < 10; ++i) {
    const auto client = server.Connect();
    EXPECT_TRUE(WaitFor([&] { return client->GetLoad().ok(); })) << i;
  }
}

// One after the other, each as the one before is gone.
TEST(GrpcListenerTest, WhoFollowsOneThatIsGoneIsTaken) {
  ServerOptions options = DemoOptions();
  options.max_grpc_connections = 1;
  TestServer server(options);
  for (int i = 0; i < 30; ++i) {
    HttpConnection connection(server.server().grpc_port());
    EXPECT_NE(connection.ReadSome(), "") << i;
  }
}

// The server ends, whoever goes on connecting.
TEST(GrpcListenerTest, EndsBesideThoseThatConnect) {
  ServerOptions options = DemoOptions();
  options.max_grpc_connections = 1;
  auto server = std::make_unique<TestServer>(options);
  const int port = server->server().grpc_port();
  std::atomic<bool> ended = false;
  std::atomic<int> connections = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      while (!ended) connections += CanConnect("127.0.0.1", port) == 1;
    });
  }
  EXPECT_TRUE(WaitFor([&] { return connections > 100; }));
  server.reset();
  ended = true;
  for (std::thread& client : clients) client.join();
}

// As clients that open more connections than the system lets a process have.
TEST(GrpcListenerTest, GoesOnWhenThereAreFilesAgain) {
  constexpr int kFiles = 200;
  Process server({"/bin/sh", "-c", "ulimit -n 200; exec \"$0\" \"$@\"",
                  RECURVE_BINARY_DIR "/bin/recurve-server", "--model",
                  RECURVE_SOURCE_DIR "/deploy/models/demo", "--device", "cpu",
                  "--num-threads", "1", "--kv-pages", "256", "--grpc-port", "0",
                  "--http-port", "0"});
  const std::string address = server.GrpcAddress();
  ASSERT_NE(address, "") << server.Err();
  EXPECT_THAT(server.Err(), HasSubstr("the process may open 200 files, but "));
  const int port = std::atoi(address.substr(address.find(':') + 1).c_str());
  ClientOptions own;
  own.own_connection = true;
  const auto early = *RecurveClient::Create(address, own);
  ASSERT_TRUE(early->GetLoad().ok());
  {
    std::vector<std::unique_ptr<HttpConnection>> held;
    for (int i = 0; i < kFiles + 50; ++i) {
      held.push_back(std::make_unique<HttpConnection>(port));
    }
    EXPECT_TRUE(WaitFor([&] {
      return server.Err().find("Too many open files") != std::string::npos;
    })) << server.Err();
    EXPECT_GE(server.OpenFiles(), kFiles - 5);
    // Who is connected is served.
    EXPECT_TRUE(early->GetLoad().ok());
  }
  const auto late = *RecurveClient::Create(address, own);
  EXPECT_TRUE(WaitFor([&] { return late->GetLoad().ok(); })) << server.Err();
  EXPECT_TRUE(WaitFor([&] { return server.OpenFiles() < kFiles / 2; }));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.Err();
}

}  // namespace
}  // namespace recurve
