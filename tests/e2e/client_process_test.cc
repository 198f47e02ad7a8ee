// recurve-client as a program: signals, and a standard output that takes
// nothing.

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "nlohmann/json.hpp"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/process.h"

namespace recurve {
namespace {

using testing::HasSubstr;

const char kServer[] = RECURVE_BINARY_DIR "/bin/recurve-server";
const char kClient[] = RECURVE_BINARY_DIR "/bin/recurve-client";
const char kDemo[] = RECURVE_SOURCE_DIR "/deploy/models/demo";

// A server that takes connections and answers nothing.
class HttpListener {
 public:
  HttpListener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~HttpListener() {
    for (const int connection : connections_) close(connection);
    close(fd_);
  }
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  int port() const { return port_; }
  // Waits for a connection; what came over it first.
  std::string FirstLine() {
    if (!WaitFor([&] { return Asked(); }, 60)) return "";
    connections_.push_back(accept(fd_, nullptr, nullptr));
    char text[512];
    const ssize_t size = recv(connections_.back(), text, sizeof(text), 0);
    return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }
  // Whether another connection waits.
  bool Asked() const {
    pollfd poll_fd = {fd_, POLLIN, 0};
    return poll(&poll_fd, 1, 0) != 0;
  }

 private:
  const int fd_;
  int port_ = 0;
  std::vector<int> connections_;
};

class ClientProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    address_ = server_.GrpcAddress();
    ASSERT_FALSE(address_.empty()) << server_.Err();
    path_ = testing::TempDir() + "/recurve_client_process_test." +
            std::to_string(getpid()) + ".json";
  }
  void TearDown() override { std::remove(path_.c_str()); }

  // The client within a line of shell: CLIENT is the program and its server.
  std::vector<std::string> Shell(const std::string& line) const {
    return {"/bin/bash", "-c",
            "CLIENT() { \"" + std::string(kClient) + "\" \"$1\" --server " +
                address_ + " \"${@:2}\"; }; " + line};
  }
  nlohmann::json Report() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  Process server_{
      {kServer, "--model", kDemo, "--grpc-port", "0", "--http-port", "-1"}};
  std::string address_;
  std::string path_;
};

TEST_F(ClientProcessTest, ResultsOutliveTheReaderOfTheTable) {
  // The reader is gone at once.
  Process client(
      Shell("CLIENT bench --num-requests 4 --prompt-tokens 8 --output-tokens 4 "
            "--json " +
            path_ + " | true; echo ${PIPESTATUS[0]}"));
  EXPECT_EQ(client.Wait(), 0);
  EXPECT_EQ(client.Out(), "1\n");
  EXPECT_THAT(client.Err(), HasSubstr("standard output cannot be written"));
  EXPECT_EQ(Report()["completed"], 4);
}

TEST_F(ClientProcessTest, AFullStandardOutputIsAnError) {
  for (const char* command :
       {"info", "health", "bench --explain", "bench --num-requests 1",
        "bench --num-requests 1 --json -",
        "generate --prompt a --max-new-tokens 2 --json",
        "generate --prompt a --max-new-tokens 2", "generate --help"}) {
    Process client(Shell("CLIENT " + std::string(command) + " > /dev/full"));
    EXPECT_EQ(client.Wait(), 1) << command;
    EXPECT_THAT(client.Err(),
                HasSubstr("DATA_LOSS: standard output cannot be written\n"))
        << command;
  }
}

// gRPC would end the process with a stack of calls.
TEST_F(ClientProcessTest, FewOpenFilesAreAnError) {
  int served = 0;
  int refused = 0;
  for (int limit = 4; limit <= 16; ++limit) {
    Process client(
        {"/bin/sh", "-c",
         "ulimit -n " + std::to_string(limit) + "; exec \"$0\" \"$@\"", kClient,
         "health", "--server", address_, "--timeout", "60"});
    const int code = client.Wait();
    if (code == 0) {
      ++served;
      continue;
    }
    if (code == 127) continue;  // the system could not load its libraries
    EXPECT_EQ(code, 1) << limit;
    ++refused;
    EXPECT_THAT(client.Err(),
                testing::StartsWith("recurve-client: RESOURCE_EXHAUSTED: the "
                                    "client needs 8 more open files"));
    EXPECT_THAT(client.Err(), HasSubstr("may open " + std::to_string(limit)));
    const std::string error = client.Err();
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  }
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0);
}

// A proxy cannot reach this machine's loopback addresses, and images are often
// started where one is named for all they do.
TEST_F(ClientProcessTest, NoProxyIsAskedForThisMachine) {
  std::vector<std::string> environment;
  for (const char* name :
       {"grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "GRPC_PROXY",
        "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"}) {
    // The port has no listener.
    environment.push_back(std::string(name) + "=http://127.0.0.1:9");
  }
  for (const char* none : {"no_grpc_proxy", "no_proxy", "NO_PROXY"}) {
    environment.push_back(std::string(none) + "=");
  }
  const std::string port = address_.substr(address_.rfind(':') + 1);
  for (const std::string& host :
       {std::string("127.0.0.1"), std::string("localhost")}) {
    Process health(
        {kClient, "health", "--server", host + ":" + port, "--timeout", "60"},
        environment);
    EXPECT_EQ(health.Wait(), 0) << health.Err();
    EXPECT_EQ(health.Out(), "SERVING\n");
  }
  Process bench({kClient, "bench", "--server", address_, "--num-requests", "1",
                 "--prompt-tokens", "8", "--output-tokens", "4"},
                environment);
  EXPECT_EQ(bench.Wait(), 0) << bench.Err();
}

// What a proxy is asked for when the client wants another host: gRPC's own way,
// which these variables must not close.
TEST_F(ClientProcessTest, AProxyIsAskedForOthersButThoseOfNoProxy) {
  HttpListener proxy;
  const std::string named =
      "grpc_proxy=http://127.0.0.1:" + std::to_string(proxy.port());
  const std::vector<std::string> command = {
      kClient,     "health", "--server", "recurve.invalid:50051",
      "--timeout", "60"};
  Process asks(command,
               {named, "no_grpc_proxy=", "no_proxy=", "NO_PROXY=other"});
  EXPECT_THAT(proxy.FirstLine(), HasSubstr("CONNECT recurve.invalid:50051 "));
  asks.Signal(SIGKILL);  // before it asks again
  asks.Wait();
  // The name is looked up instead, and there is none.
  Process direct(
      command,
      {named, "no_grpc_proxy=", "no_proxy=", "NO_PROXY=other,.invalid"});
  EXPECT_NE(direct.Wait(), 0);
  EXPECT_FALSE(proxy.Asked());
}

TEST_F(ClientProcessTest, AHangupWritesTheResults) {
  // One after the other, so that tokens of a sixth request mean that the client
  // has seen the end of five.
  Process client({kClient, "bench", "--server", address_, "--rate", "50",
                  "--max-concurrency", "1", "--duration", "600",
                  "--prompt-tokens", "8", "--output-tokens", "4", "--json",
                  path_});
  const auto admin = *RecurveClient::Create(address_);
  ASSERT_TRUE(WaitFor([&] {
    const auto load = admin->GetLoad();
    return load.ok() && load->generation_tokens_total() > 20;
  }));
  client.Signal(SIGHUP);
  EXPECT_EQ(client.Wait(), 130);
  EXPECT_GE(Report()["completed"], 5);
}

TEST_F(ClientProcessTest, AServerKilledInASweepIsAnError) {
  Process client({kClient, "bench", "--server", address_, "--sweep-rates",
                  "20,40", "--sweep-refine", "2", "--duration", "600",
                  "--max-errors", "20", "--prompt-tokens", "8",
                  "--output-tokens", "4", "--json", path_});
  const auto admin = *RecurveClient::Create(address_);
  ASSERT_TRUE(WaitFor([&] {
    const auto load = admin->GetLoad();
    return load.ok() && load->generation_tokens_total() > 20;
  }));
  server_.Signal(SIGKILL);
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_THAT(client.Err(), HasSubstr("UNAVAILABLE: "));
  const nlohmann::json report = Report();
  ASSERT_EQ(report["steps"].size(), 1u);
  EXPECT_TRUE(report["steps"][0]["saturated"].is_null());
  EXPECT_TRUE(report["max_sustained_rate"].is_null());
}

}  // namespace
}  // namespace recurve
