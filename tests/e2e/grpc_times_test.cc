// What the gRPC transport gives a client time for, and who is gone.

#include <dirent.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/transport/stranger_bytes.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/http2_client.h"
#include "tests/testing/toy_service.h"

namespace recurve {
namespace {

using http2::BigEndian;
using http2::Frame;
using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kNoError = 0;
constexpr uint32_t kCancel = 8;
constexpr uint32_t kEnhanceYourCalm = 11;
constexpr int kDeadlineExceeded = 4;
// Longer than any test: what ends before it was ended.
constexpr milliseconds kNever = std::chrono::hours(1);

// No timeouts except those that a test sets.
GrpcServerOptions Patient() {
  GrpcServerOptions options;
  options.handshake_timeout = options.head_timeout = options.message_timeout =
      options.idle_timeout = options.keepalive_interval =
          options.stalled_client_timeout = kNever;
  options.penalty = milliseconds(20);
  return options;
}

int OpenFiles() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(GrpcTimesTest, APrefaceThatDoesNotComeEndsTheConnection) {
  GrpcServerOptions options = Patient();
  options.handshake_timeout = milliseconds(100);
  ToyServer server(options);
  for (const std::string& sent : {std::string(), http2::Preface().substr(0, 23),
                                  http2::Preface().substr(0, 30)}) {
    HttpConnection connection(server.port());
    connection.Send(sent);
    std::string read;
    for (std::string some; !(some = connection.ReadSome()).empty();) {
      read += some;
    }
    EXPECT_THAT(read, HasSubstr("did not come within"));
  }
  // Who has spoken is not held to it.
  Http2Client client(server.port());
  client.Open(1, "/known/Hold");
  ASSERT_TRUE(WaitFor([&] { return server.service().begun() == 1; }));
  std::this_thread::sleep_for(milliseconds(300));
  server.service().FinishHeld();
  EXPECT_EQ(client.Await(1).status(), 0);
}

TEST(GrpcTimesTest, AHeadThatIsNotContinuedEndsTheConnection) {
  GrpcServerOptions options = Patient();
  options.head_timeout = milliseconds(200);
  ToyServer server(options);
  Http2Client other(server.port());
  other.Open(1, "/known/Hold");
  Http2Client client(server.port());
  ASSERT_TRUE(client.Settle());
  client.Send(Frame(kHttp2Headers, 0, 1, http2::CallHeaders("/known/Echo")));
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_EQ(client.go_away()->error, kEnhanceYourCalm);
  EXPECT_THAT(client.go_away()->reason, HasSubstr("head of a call"));
  EXPECT_EQ(server.service().begun(), 1);
  server.service().FinishHeld();
  EXPECT_EQ(other.Await(1).status(), 0);
}

// Also while it waits for something else.
TEST(GrpcTimesTest, AHeadThatCameIsNotWaitedFor) {
  GrpcServerOptions options = Patient();
  options.head_timeout = milliseconds(100);
  // Looks at the time all along.
  options.message_timeout = milliseconds(200);
  ToyServer server(options);
  Http2Client client(server.port());
  // On a call, on a refused call, and after a GOAWAY.
  client.Open(1, "/known/Hold");
  client.Open(3, "/known/Nothing");
  client.Open(1, "/known/Hold");  // a second head: trailers without an end
  ASSERT_TRUE(WaitFor([&] { return server.service().begun() == 1; }));
  std::this_thread::sleep_for(milliseconds(500));
  client.Open(5, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(5).status(), 0);
  EXPECT_FALSE(client.go_away().has_value());
}

TEST(GrpcTimesTest, AMessageThatDoesNotComeToItsEndFailsItsCall) {
  GrpcServerOptions options = Patient();
  options.message_timeout = milliseconds(200);
  ToyServer server(options);
  Http2Client client(server.port());
  client.Open(1, "/known/Hold");
  client.Open(3, "/known/Hold");
  client.SendData(3, GrpcMessage("").substr(0, 1), /*end=*/false);
  EXPECT_EQ(client.Await(3).status(), kDeadlineExceeded);
  EXPECT_THAT(client.answer(3).message(), HasSubstr("did not come in time"));
  // One that has not begun has all the time.
  EXPECT_EQ(client.answer(1).status(), -1);
  client.SendData(1, GrpcMessage("x"), /*end=*/false);
  EXPECT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
}

TEST(GrpcTimesTest, AServiceMayLimitTheTimeOfAMessage) {
  GrpcServerOptions options = Patient();
  options.message_timeout = milliseconds(4000);  // looks four times as often
  ToyServer server(options, /*read_within=*/milliseconds(100));
  Http2Client client(server.port());
  client.Open(1, "/known/Hold");
  EXPECT_EQ(client.Await(1).status(), kDeadlineExceeded);
}

TEST(GrpcTimesTest, OnlyUnknownClientsMustNotBeIdle) {
  GrpcServerOptions options = Patient();
  options.idle_timeout = milliseconds(200);
  ToyServer server(options);
  Http2Client known(server.port());
  known.Open(1, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(known.Await(1).status(), 0);
  // With a call it is not idle.
  Http2Client busy(server.port());
  busy.Open(1, "/strange/Hold");
  ASSERT_TRUE(WaitFor([&] { return server.service().begun() == 2; }));
  Http2Client fresh(server.port());
  Http2Client strange(server.port());
  strange.Open(1, "/strange/Echo", kHttp2EndStream);
  EXPECT_EQ(strange.Await(1).status(), 0);
  for (Http2Client* client : {&fresh, &strange}) {
    client->AwaitEnd();
    ASSERT_TRUE(client->go_away().has_value());
    EXPECT_EQ(client->go_away()->error, kNoError);
    EXPECT_EQ(client->go_away()->reason, "idle");
  }
  EXPECT_TRUE(WaitFor([&] { return server.server().connections() == 2; }));
  server.service().FinishHeld();
  EXPECT_EQ(busy.Await(1).status(), 0);
  known.Open(3, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(known.Await(3).status(), 0);
  busy.AwaitEnd();
}

TEST(GrpcTimesTest, WhoIsSilentIsAskedAndStaysIfItAnswers) {
  GrpcServerOptions options = Patient();
  options.keepalive_interval = milliseconds(50);
  options.keepalive_timeout = milliseconds(30'000);
  ToyServer server(options);
  Http2Client client(server.port());
  client.Open(1, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(1).status(), 0);
  EXPECT_TRUE(client.ReadUntil([&] { return client.pings() == 5; }));
  client.Open(3, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(3).status(), 0);
}

TEST(GrpcTimesTest, WhoDoesNotAnswerIsGone) {
  GrpcServerOptions options = Patient();
  options.keepalive_interval = milliseconds(100);
  options.keepalive_timeout = milliseconds(100);
  ToyServer server(options);
  for (const bool with_call : {false, true}) {
    Http2Client client(server.port());
    client.set_answers_pings(false);
    client.Open(1, with_call ? "/known/Hold" : "/known/Refuse");
    client.AwaitEnd();
    EXPECT_EQ(client.pings(), 1);
    EXPECT_FALSE(client.go_away().has_value());
  }
  EXPECT_TRUE(WaitFor([&] { return server.service().alive() == 0; }));
  EXPECT_EQ(server.server().connections(), 0);
}

// Anything that it sends says that it is there.
TEST(GrpcTimesTest, WhoSpeaksNeedNotAnswer) {
  GrpcServerOptions options = Patient();
  options.keepalive_interval = milliseconds(50);
  options.keepalive_timeout = milliseconds(3000);
  ToyServer server(options);
  Http2Client client(server.port());
  client.set_answers_pings(false);
  client.Open(1, "/known/Echo");
  // For longer than it takes to be gone.
  const auto end = Clock::now() + milliseconds(5000);
  int count = 0;
  while (Clock::now() < end) {
    client.SendData(1, GrpcMessage("x"), /*end=*/false);
    ++count;
    ASSERT_TRUE(client.ReadUntil([&] {
      return client.answer(1).data.size() == 6u * static_cast<size_t>(count);
    }));
    std::this_thread::sleep_for(milliseconds(200));
  }
  EXPECT_GE(client.pings(), 1);
}

// The socket takes nothing.
TEST(GrpcTimesTest, WhoNeverReadsIsCutOff) {
  GrpcServerOptions options = Patient();
  options.stalled_client_timeout = milliseconds(400);
  ToyServer server(options);
  Http2Client client(server.port(), nullptr, /*receive_buffer=*/4096);
  client.GrantAll();
  client.Open(1, "/known/Fill");
  client.SendData(1, GrpcMessage("100000 60000"), /*end=*/true);
  ASSERT_TRUE(WaitFor([&] { return server.service().ended().size() == 1; }));
  EXPECT_EQ(server.service().ended()[0].code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(WaitFor([&] { return server.server().connections() == 0; }));
}

// The stream's window is used up; the connection is well.
TEST(GrpcTimesTest, ACallThatGrantsNothingIsReset) {
  GrpcServerOptions options = Patient();
  options.stalled_client_timeout = milliseconds(400);
  ToyServer server(options);
  Http2Client client(server.port());
  client.set_grants_window(false);
  client.Open(1, "/known/Fill");
  client.SendData(1, GrpcMessage("1 100000"), /*end=*/true);
  EXPECT_EQ(client.Await(1).reset, kCancel);
  ASSERT_EQ(server.service().ended().size(), 1u);
  EXPECT_EQ(server.service().ended()[0].code(),
            absl::StatusCode::kResourceExhausted);
  client.Open(3, "/known/Refuse");
  EXPECT_EQ(client.Await(3).status(), 8);
}

// Connections in all states, and calls in all states on them.
TEST(GrpcTimesTest, ManyThatComeAndGoLeaveNothing) {
  StrangerBytes strangers(1 << 20, 256 << 20);
  GrpcServerOptions options;
  options.strangers = &strangers;
  ToyServer server(options);
  const auto round = [&](int i) {
    const std::string kind = i % 2 == 0 ? "/known/" : "/strange/";
    Http2Client client(server.port());
    switch (i % 10) {
      case 0:
        break;
      case 1:
        client.Open(1, kind + "Hold");
        break;
      case 2:
        client.Open(1, kind + "Hold");
        client.SendData(1, GrpcMessage("hello").substr(0, 7), false);
        break;
      case 3:
        client.Open(1, kind + "Echo", kHttp2EndStream);
        client.Await(1);
        break;
      case 4:
        client.Send(Frame(kHttp2Headers, 0, 1, http2::CallHeaders("/a/b")));
        break;
      case 5:
        client.Open(1, kind + "Fill");
        client.SendData(1, GrpcMessage("100 60000"), true);
        break;
      case 6:
        client.Open(1, kind + "Hold", 0, http2::Header("grpc-timeout", "1H"));
        client.Send(Frame(kHttp2Reset, 0, 1, BigEndian(kCancel, 4)));
        break;
      case 7:
        client.Send("nothing of HTTP/2");
        break;
      case 8:
        client.Open(1, kind + "Refuse");
        client.connection().Reset();
        break;
      case 9:
        client.Open(1, kind + "Hold");
        client.Send(Frame(kHttp2GoAway, 0, 0, std::string(8, '\0')));
        break;
    }
  };
  const int files = OpenFiles();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) round(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The last may not have been accepted yet.
  EXPECT_TRUE(WaitFor([&] {
    return OpenFiles() == files && server.server().connections() == 0 &&
           server.service().alive() == 0 && strangers.total() == 0;
  })) << OpenFiles() - files
      << " files, " << server.server().connections() << " connections, "
      << server.service().alive() << " calls, " << strangers.total()
      << " bytes of unknown clients";
  EXPECT_EQ(server.service().ended().size(),
            static_cast<size_t>(server.service().begun()));
}

}  // namespace
}  // namespace recurve
