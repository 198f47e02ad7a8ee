#include "server/transport/listening_sockets.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/transport/acceptor.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

bool HasIpv6() {
  const auto sockets = ListeningSockets::Open("a test", "::1", 0);
  return sockets.ok();
}

bool Listens(const std::string& host, const std::string& address) {
  const auto sockets = ListeningSockets::Open("a test", host, 0);
  if (!sockets.ok()) {
    ADD_FAILURE() << host << ": " << sockets.status();
    return false;
  }
  const int fd = ConnectTo(address, sockets->port());
  if (fd >= 0) close(fd);
  return fd >= 0;
}

TEST(ListeningSocketsTest, ListenOnEveryAddressOfAName) {
  EXPECT_TRUE(Listens("127.0.0.1", "127.0.0.1"));
  EXPECT_TRUE(Listens("localhost", "127.0.0.1"));
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  EXPECT_FALSE(Listens("127.0.0.1", "::1"));
  EXPECT_TRUE(Listens("::1", "::1"));
  EXPECT_TRUE(Listens("[::1]", "::1"));
  EXPECT_FALSE(Listens("::1", "127.0.0.1"));
  // All of them, in whatever family they are written.
  for (const char* all : {"0.0.0.0", "::"}) {
    EXPECT_TRUE(Listens(all, "127.0.0.1")) << all;
    EXPECT_TRUE(Listens(all, "::1")) << all;
  }
}

TEST(ListeningSocketsTest, APortIsOneServers) {
  auto first = ListeningSockets::Open("HTTP", "127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << first.status();
  const int port = first->port();
  const auto second = ListeningSockets::Open("gRPC", "127.0.0.1", port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen for gRPC on 127.0.0.1:" +
                        std::to_string(port) + ": Address already"));
  first->Close();
  EXPECT_TRUE(ListeningSockets::Open("gRPC", "127.0.0.1", port).ok());
}

// None of the addresses may be in use by another server: clients would reach
// either.
TEST(ListeningSocketsTest, APortIsOneServersOnAllAddresses) {
  std::vector<std::string> addresses = {"127.0.0.1"};
  if (HasIpv6()) addresses.emplace_back("::1");
  for (const std::string& address : addresses) {
    const auto other = ListeningSockets::Open("HTTP", address, 0);
    ASSERT_TRUE(other.ok()) << other.status();
    for (const char* all : {"0.0.0.0", "::"}) {
      if (all[0] == ':' && addresses.size() == 1) continue;
      const auto sockets = ListeningSockets::Open("gRPC", all, other->port());
      EXPECT_EQ(sockets.status().code(), absl::StatusCode::kUnavailable)
          << all << " together with " << address;
    }
  }
}

TEST(ListeningSocketsTest, HalfABracketIsNoAddress) {
  EXPECT_EQ(ListeningSockets::Open("HTTP", "[::1", 0).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(ListeningSocketsTest, AHostThatIsNoneIsAnError) {
  const auto sockets =
      ListeningSockets::Open("HTTP", "no.such.host.invalid", 80);
  EXPECT_EQ(sockets.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(sockets.status().message()),
      StartsWith("cannot listen for HTTP on no.such.host.invalid:80: "));
}

// What a server answers on `address`; nothing if it does not listen there.
std::string Answer(const std::string& address, int port) {
  const int fd = ConnectTo(address, port);
  if (fd < 0) return "";
  const std::string request = HttpRequestText("GET", "/health");
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  char answer[15] = {};
  EXPECT_EQ(recv(fd, answer, 12, MSG_WAITALL), 12);
  close(fd);
  return answer;
}

// gRPC and HTTP listen on the same addresses.
TEST(ListeningSocketsTest, AServerAnswersOnAllOfThem) {
  for (const char* host : {"0.0.0.0", "::", "localhost"}) {
    if (host[0] == ':' && !HasIpv6()) continue;
    ServerOptions options = DemoOptions();
    options.host = host;
    options.metrics_port = 0;
    TestServer server(options);
    std::vector<std::string> addresses = {"127.0.0.1"};
    if (HasIpv6() && host[0] != 'l') addresses.emplace_back("::1");
    for (const std::string& address : addresses) {
      SCOPED_TRACE(testing::Message() << host << " on " << address);
      EXPECT_EQ(Answer(address, server.server().http_port()), "HTTP/1.1 200");
      EXPECT_EQ(Answer(address, server.server().metrics_port()),
                "HTTP/1.1 200");
      const int fd = ConnectTo(address, server.server().grpc_port());
      EXPECT_GE(fd, 0);
      close(fd);
    }
  }
}

// Asio throws where it finds no file for its queue of events.
TEST(ListeningSocketsTest, AcceptorsWithoutFilesAreAnError) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  Acceptor::Options options;
  options.protocol = "a test";
  options.host = "127.0.0.1";
  int failed = 0;
  bool listens = false;
  for (int files = 0; files < 12; ++files) {
    const int next = open("/", O_PATH | O_CLOEXEC);  // the lowest that is free
    ASSERT_GE(next, 0);
    close(next);
    rlimit limit = before;
    limit.rlim_cur = static_cast<rlim_t>(next) + files;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const auto acceptor = Acceptor::Listen(options);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    listens = acceptor.ok();
    if (listens) continue;
    ++failed;
    EXPECT_EQ(acceptor.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(acceptor.status().message()),
                testing::AllOf(StartsWith("cannot listen for a test"),
                               HasSubstr("Too many open files")));
  }
  EXPECT_GE(failed, 3);
  EXPECT_TRUE(listens);
}

}  // namespace
}  // namespace recurve
