// Connections of gRPC: more than the server takes or the system lets it have,
// and what one of them may ask for.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "tests/e2e/server_fixture.h"
#include "tests/testing/http2.h"
#include "tests/testing/http2_client.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process.h"

namespace recurve {
namespace {

using testing::HasSubstr;

TEST(GrpcConnectionsTest, MoreConnectionsThanAllowedAreClosed) {
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
    // Connections of known clients, which do not give way.
    Http2Client held[3] = {Http2Client(port), Http2Client(port),
                           Http2Client(port)};
    for (Http2Client& connection : held) {
      connection.Open(1, "/recurve.v1.Control/GetLoad");
      ASSERT_TRUE(connection.SendData(1, GrpcMessage(""), /*end=*/true));
      ASSERT_EQ(connection.Await(1).status(), 0);
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
  // Without any new connection.
  EXPECT_TRUE(WaitFor([&] { return metric("{state=\"used\"}") == 0; }));
  // What is gone takes no place, however often.
  for (int i = 0; i < 10; ++i) {
    const auto client = server.Connect();
    EXPECT_TRUE(WaitFor([&] { return client->GetLoad().ok(); })) << i;
  }
}

// One after the other, each as the one before is gone.
TEST(GrpcConnectionsTest, WhoFollowsOneThatIsGoneIsTaken) {
  ServerOptions options = DemoOptions();
  options.max_grpc_connections = 1;
  TestServer server(options);
  for (int i = 0; i < 30; ++i) {
    HttpConnection connection(server.server().grpc_port());
    EXPECT_NE(connection.ReadSome(), "") << i;
  }
}

// The server ends while clients keep connecting.
TEST(GrpcConnectionsTest, EndsBesideThoseThatConnect) {
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
TEST(GrpcConnectionsTest, GoesOnWhenThereAreFilesAgain) {
  constexpr int kFiles = 200;
  Process server({"/bin/sh", "-c", "ulimit -n 200; exec \"$0\" \"$@\"",
                  (RECURVE_BINARY_DIR "/bin/recurve-server"), "--model",
                  (RECURVE_SOURCE_DIR "/deploy/models/demo"), "--device", "cpu",
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

// The value of a setting in the frame that the server begins with; -1: none.
int64_t ServerSetting(int port, int id) {
  HttpConnection connection(port);
  std::string bytes;
  const auto number = [&](size_t at, size_t count) {
    int64_t value = 0;
    for (size_t i = at; i < at + count; ++i) {
      value = value << 8 | static_cast<uint8_t>(bytes[i]);
    }
    return value;
  };
  while (bytes.size() < 9 ||
         static_cast<int64_t>(bytes.size()) < 9 + number(0, 3)) {
    const std::string more = connection.ReadSome();
    if (more.empty()) return -1;
    bytes += more;
  }
  EXPECT_EQ(bytes[3], 4);  // SETTINGS
  for (size_t at = 9; at < 9 + static_cast<size_t>(number(0, 3)); at += 6) {
    if (number(at, 2) == id) return number(at + 2, 4);
  }
  return -1;
}

TEST(GrpcTransportTest, AConnectionCarriesAllThatIsAccepted) {
  ServerOptions options = DemoOptions();
  options.engine.max_num_seqs = 16;
  options.engine.max_queued_requests = 600;
  TestServer server(options);
  EXPECT_EQ(ServerSetting(server.server().grpc_port(), 3), 4 * (16 + 600) + 64);
  const auto stub = v1::Inference::NewStub(server.Channel());
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> events;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 512; ++i) {
    calls.push_back(std::make_unique<Call>());
    calls.back()->events =
        stub->Generate(&calls.back()->context, GreedyRequest({256, 65}, 8));
  }
  for (const auto& call : calls) {
    v1::GenerateEvent event;
    while (call->events->Read(&event)) {
    }
    const grpc::Status status = call->events->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  server.ExpectIdle();
}

// They are received before the call's key is checked.
TEST(GrpcTransportTest, MessagesThatAreNeverWholeAreBoundedTogether) {
  ServerOptions options = DemoOptions();
  options.max_grpc_buffer_bytes = 4 << 20;
  TestServer server(options);
  std::string message("\0\x00\x3f\xff\x00", 5);  // of 4 MiB, nearly
  message.resize(16384, 'x');
  const std::string data = http2::Frame(0, 0, 1, message);
  const std::string part =
      http2::Preface() +
      http2::OpenStream(1, "/recurve.v1.Inference/Generate") + data + data +
      data;
  const std::string reset = http2::Frame(3, 0, 1, std::string("\0\0\0\x0b", 4));
  std::deque<HttpConnection> held;
  const auto hold = [&] {
    held.emplace_back(server.server().grpc_port());
    held.back().Send(part);
  };
  for (int i = 0; i < 150; ++i) hold();
  // To ENHANCE_YOUR_CALM, the longest held first.
  EXPECT_TRUE(WaitFor([&] {
    hold();
    held.front().HalfClose();
    std::string read;
    for (std::string more; !(more = held.front().ReadSome()).empty();) {
      read += more;
    }
    held.pop_front();
    return read.find(reset) != std::string::npos;
  }));
  held.clear();
  EXPECT_TRUE(WaitFor([&] {
    return Generate(*server.Connect(), GreedyRequest({256, 65}, 4)).status.ok();
  }));
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
