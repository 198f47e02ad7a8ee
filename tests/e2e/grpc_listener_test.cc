// Connections of gRPC: more than the server takes or the system lets it have.

#include "server/grpc_listener.h"

#include <signal.h>
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
      while (!ended) {
        const int fd = ConnectTo("127.0.0.1", port);
        if (fd < 0) continue;
        ++connections;
        close(fd);
      }
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
