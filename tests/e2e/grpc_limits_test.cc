// What the gRPC transport bears from a client, and what it does not.

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
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
using http2::Header;
using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kNoError = 0;
constexpr uint32_t kCancel = 8;
constexpr uint32_t kStreamClosed = 5;
constexpr uint32_t kEnhanceYourCalm = 11;

std::string ResetFrame(uint32_t stream, uint32_t error = kCancel) {
  return Frame(kHttp2Reset, 0, stream, BigEndian(error, 4));
}

// Whether a call of Echo works on the connection.
bool Echoes(Http2Client& client, uint32_t stream) {
  client.Open(stream, "/known/Echo");
  client.SendData(stream, GrpcMessage("hello"), /*end=*/true);
  const Http2Answer& answer = client.Await(stream);
  return answer.status() == 0 && answer.data == GrpcMessage("hello");
}

// What says so comes behind output that the socket is being given, and must not
// disturb it.
TEST(GrpcLimitsTest, WhoIsEndedWhileOutputWaitsGetsWholeFrames) {
  constexpr int kSize = 30'000;
  constexpr uint32_t kHeld = 500;
  mallopt(M_PERTURB, 0xa5);  // memory that is freed does not stay as it was
  GrpcServerOptions options;
  options.penalty = std::chrono::minutes(1);  // however long it reads
  ToyServer server(options);
  Http2Client client(server.port(), nullptr, /*receive_buffer=*/4096);
  client.GrantAll();
  ASSERT_TRUE(Echoes(client, 1));
  for (uint32_t i = 0; i < kHeld; ++i) client.Open(3 + 2 * i, "/known/Hold");
  client.Open(1 + 2 * kHeld + 2, "/known/Fill");
  client.SendData(1 + 2 * kHeld + 2, GrpcMessage(absl::StrCat("1000 ", kSize)),
                  /*end=*/true);
  ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 2; }));
  // Until its socket is full.
  int64_t written = -1;
  ASSERT_TRUE(WaitFor([&] {
    std::this_thread::sleep_for(milliseconds(200));
    return std::exchange(written, server.service().written()) ==
           server.service().written();
  }));
  client.Send(http2::EndlessHead(3 + 2 * kHeld + 2));
  ASSERT_TRUE(
      WaitFor([&] { return server.service().ended().size() == kHeld + 2; }));
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_NE(client.go_away()->error, kNoError);
  for (uint32_t i = 0; i < kHeld; ++i) {
    EXPECT_TRUE(client.answer(3 + 2 * i).reset.has_value()) << i;
  }
  const std::string& data = client.answer(1 + 2 * kHeld + 2).data;
  std::string expected;
  for (int i = 0; expected.size() < data.size(); ++i) {
    expected += GrpcMessage(ToyFill(i, kSize));
  }
  EXPECT_GT(data.size(), size_t{kSize});
  EXPECT_TRUE(data == expected.substr(0, data.size()));
  mallopt(M_PERTURB, 0);
}

// Only its own connection, and its calls are told.
TEST(GrpcLimitsTest, AHeadWithoutEndEndsTheConnection) {
  ToyServer server;
  Http2Client other(server.port());
  other.Open(1, "/known/Echo");
  Http2Client client(server.port());
  client.Open(1, "/known/Hold");
  ASSERT_TRUE(WaitFor([&] { return server.service().begun() == 2; }));
  client.Send(http2::EndlessHead(3));
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_EQ(client.go_away()->error, kEnhanceYourCalm);
  EXPECT_THAT(client.go_away()->reason, HasSubstr("head of a call"));
  EXPECT_EQ(client.answer(1).reset, kEnhanceYourCalm);
  ASSERT_EQ(server.service().ended().size(), 1u);
  EXPECT_EQ(server.service().ended()[0].code(), absl::StatusCode::kCancelled);
  other.SendData(1, GrpcMessage("hello"), /*end=*/true);
  EXPECT_EQ(other.Await(1).status(), 0);
  EXPECT_EQ(other.answer(1).data, GrpcMessage("hello"));
}

// Such that fit the limit of bytes as they are sent.
TEST(GrpcLimitsTest, AHeadThatUnfoldsToMuchMoreEndsTheConnection) {
  ToyServer server;
  Http2Client client(server.port());
  // An entry of the table, and one byte for each use of it.
  const std::string value(3000, 'x');
  const std::string entry =
      absl::StrCat("\x40\x01x", http2::HpackLength(3000), value);
  client.Send(Frame(
      kHttp2Headers, kHttp2EndHeaders, 1,
      http2::CallHeaders("/known/Echo") + entry + std::string(1000, '\xbe')));
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_EQ(client.go_away()->error, kEnhanceYourCalm);
}

// As a gateway does that has just connected.
TEST(GrpcLimitsTest, WhoIsKnownByItsFirstCallMayHaveSentManyMore) {
  ToyServer server;
  Http2Client client(server.port());
  std::string calls;
  for (uint32_t i = 0; i < 100; ++i) {
    calls += Frame(kHttp2Headers, kHttp2EndHeaders | kHttp2EndStream, 1 + 2 * i,
                   http2::CallHeaders("/known/Echo"));
  }
  client.Send(calls);
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(client.Await(1 + 2 * i).status(), 0) << i;
  }
  EXPECT_FALSE(client.go_away().has_value()) << client.go_away()->reason;
}

// Its head says that it ends with this frame, whose bytes do not come.
TEST(GrpcLimitsTest, AHeadThatIsAnnouncedAndDoesNotComeEndsTheConnection) {
  GrpcServerOptions options;
  options.head_timeout = milliseconds(300);
  options.penalty = milliseconds(50);
  ToyServer server(options);
  Http2Client client(server.port());
  ASSERT_TRUE(Echoes(client, 1));  // nothing more of the server's to answer
  const std::string frame = Frame(kHttp2Headers, kHttp2EndHeaders, 3,
                                  http2::CallHeaders("/known/Echo"));
  std::atomic<bool> over = false;
  std::thread dripping([&] {
    for (size_t i = 0; i < 20 && !over; ++i) {
      client.Send(frame.substr(i, 1));
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  const auto begin = Clock::now();
  client.AwaitEnd();
  over = true;
  dripping.join();
  ASSERT_TRUE(client.go_away().has_value());
  EXPECT_EQ(client.go_away()->error, kEnhanceYourCalm);
  EXPECT_THAT(client.go_away()->reason, HasSubstr("head of a call"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

// A full server refuses calls by their heads, when their prompts are on their
// way.
TEST(GrpcLimitsTest, MessagesOfCallsThatWereRefusedAreNoOffence) {
  constexpr uint32_t kCalls = 600;
  const std::string message = GrpcMessage(std::string(60'000, 'x'));
  ToyServer server;
  Http2Client client(server.port());
  for (uint32_t i = 0; i < kCalls; ++i) {
    const uint32_t stream = 1 + 2 * i;
    ASSERT_TRUE(client.Open(stream, "/known/Refuse"));
    ASSERT_TRUE(client.SendData(stream, message, /*end=*/true)) << i;
  }
  for (uint32_t i = 0; i < kCalls; ++i) {
    EXPECT_EQ(client.Await(1 + 2 * i).status(), 8) << i;
  }
  EXPECT_FALSE(client.go_away().has_value()) << client.go_away()->reason;
  EXPECT_TRUE(Echoes(client, 1 + 2 * kCalls));
}

// Which is not to be taken for one that is gone.
TEST(GrpcLimitsTest, WhoReadsNothingForAWhileIsNotCutOffBeforeItsTime) {
  GrpcServerOptions options;
  options.keepalive_interval = milliseconds(200);
  options.keepalive_timeout = milliseconds(500);
  ToyServer server(options);
  Http2Client client(server.port(), nullptr, /*receive_buffer=*/4096);
  client.set_grants_window(false);
  const std::string most = BigEndian(0x7fff0000 - 65535, 4);
  client.Send(
      Frame(kHttp2Settings, 0, 0, BigEndian(4, 2) + BigEndian(0x7fff0000, 4)) +
      Frame(kHttp2WindowUpdate, 0, 0, most));
  client.Open(1, "/known/Fill");
  client.SendData(1, GrpcMessage("400 60000"), /*end=*/true);
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const Http2Answer& answer = client.Await(1);
  EXPECT_EQ(answer.status(), 0);
  EXPECT_EQ(answer.data.size(), 400 * 60005u);
}

// A gateway whose clients all leave.
TEST(GrpcLimitsTest, AllCallsOfAConnectionMayBeCancelledAtOnce) {
  constexpr uint32_t kCalls = 7000;
  GrpcServerOptions options;
  options.max_streams = kCalls;
  ToyServer server(options);
  Http2Client client(server.port());
  for (uint32_t i = 0; i < kCalls; ++i) client.Open(1 + 2 * i, "/known/Hold");
  EXPECT_TRUE(WaitFor([&] { return server.service().begun() == kCalls; }));
  std::string resets;
  for (uint32_t i = 0; i < kCalls; ++i) resets += ResetFrame(1 + 2 * i);
  client.Send(resets);
  EXPECT_TRUE(
      WaitFor([&] { return server.service().ended().size() == kCalls; }));
  EXPECT_TRUE(Echoes(client, 1 + 2 * kCalls));
  EXPECT_FALSE(client.go_away().has_value()) << client.go_away()->reason;
}

// Heads for streams that are closed open no calls, and cost as much to read
// (RFC 9113, 5.1).
TEST(GrpcLimitsTest, HeadsOfStreamsThatAreClosedEndTheConnection) {
  ToyServer server;
  Http2Client client(server.port());
  client.Open(1, "/strange/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(1).status(), 0);
  std::string heads;
  for (int i = 0; i < 200; ++i) {
    heads += Frame(kHttp2Headers, kHttp2EndHeaders, 1,
                   http2::CallHeaders("/strange/Echo"));
  }
  client.Send(heads);
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_EQ(client.go_away()->error, kStreamClosed);
}

// As gRPC's clients do while they receive, to find out how much the network
// takes: the server has sent all of it long before.
TEST(GrpcLimitsTest, PingsForDataThatIsOnItsWayAreNoOffence) {
  ToyServer server;
  Http2Client client(server.port());
  client.Open(1, "/known/Fill");
  client.SendData(1, GrpcMessage("20 60000"), /*end=*/true);
  EXPECT_EQ(client.Await(1).status(), 0);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.Settle()) << i;
  EXPECT_FALSE(client.go_away().has_value());
}

TEST(GrpcLimitsTest, PingsForNothingEndTheConnection) {
  ToyServer server;
  Http2Client client(server.port());
  for (int i = 0; i < 4; ++i) client.Send(Frame(kHttp2Ping, 0, 0, "12345678"));
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_EQ(client.go_away()->error, kEnhanceYourCalm);
  EXPECT_EQ(client.go_away()->reason, "too_many_pings");
}

// However much the server has to write, and the client takes.
TEST(GrpcLimitsTest, ClientsAreHeardWhileTheyAreSentMuch) {
  constexpr uint32_t kFills = 8;
  ToyServer server;
  Http2Client client(server.port());
  client.GrantAll();
  for (uint32_t i = 0; i < kFills; ++i) {
    client.Open(1 + 2 * i, "/known/Fill");
    client.SendData(1 + 2 * i, GrpcMessage("500 60000"), /*end=*/true);
  }
  ASSERT_TRUE(client.ReadUntil([&] { return !client.answer(1).data.empty(); }));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(Echoes(client, 1 + 2 * (kFills + i))) << i;
  }
  for (uint32_t i = 0; i < kFills; ++i) {
    EXPECT_FALSE(client.answer(1 + 2 * i).ended) << i;
  }
}

TEST(GrpcLimitsTest, AStrangerMayHoldSoMuch) {
  StrangerBytes strangers(1 << 20, 256 << 20);
  GrpcServerOptions options;
  options.strangers = &strangers;
  options.penalty = milliseconds(50);
  ToyServer server(options);
  // In messages, in calls that wait, and in a head that is not at its end.
  const std::string part = GrpcMessage(std::string(4'000'000, 'x'));
  Http2Client messages(server.port());
  messages.Open(1, "/strange/Hold");
  messages.SendData(1, part, /*end=*/false);
  ASSERT_TRUE(messages.AwaitGoAway());
  EXPECT_EQ(messages.go_away()->error, kEnhanceYourCalm);
  EXPECT_THAT(messages.go_away()->reason, HasSubstr("more memory"));
  EXPECT_EQ(server.service().messages(), 0);
  // Who is known may.
  Http2Client known(server.port());
  known.Open(1, "/known/Hold");
  ASSERT_TRUE(known.SendData(1, part, /*end=*/false));
  EXPECT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
  EXPECT_TRUE(WaitFor([&] { return strangers.total() == 0; }));
}

TEST(GrpcLimitsTest, AHeadThatHasBegunCountsAsHeld) {
  StrangerBytes strangers(1 << 20, 256 << 20);
  GrpcServerOptions options;
  options.strangers = &strangers;
  ToyServer server(options);
  Http2Client client(server.port());
  ASSERT_TRUE(client.ReadUntil([&] { return strangers.total() > 0; }));
  const int64_t before = strangers.total();
  std::string head;
  for (int i = 0; i < 3; ++i) {
    head += Frame(i == 0 ? kHttp2Headers : kHttp2Continuation, 0, 1,
                  Header("x", std::string(16'000, 'x')));
  }
  client.Send(head);
  EXPECT_TRUE(WaitFor([&] { return strangers.total() >= before + 2 * 48'000; }))
      << strangers.total() - before;
  client.Send(Frame(kHttp2Continuation, kHttp2EndHeaders, 1,
                    http2::CallHeaders("/strange/Echo")));
  client.Await(1);
  EXPECT_TRUE(WaitFor([&] { return strangers.total() < before + 48'000; }))
      << strangers.total() - before;
}

// Probes of the operator's own port must not fail because of the memory that
// unknown clients hold on the other ports: they would end a healthy server.
TEST(GrpcLimitsTest, StrangersDoNotKeepProbesFromThePortOfMetrics) {
  ServerOptions options = DemoOptions();
  options.metrics_port = 0;
  options.max_stranger_bytes = 100 << 10;
  options.api_keys_file = testing::TempDir() + "grpc_limits_test_keys";
  std::ofstream(options.api_keys_file) << KeyLine("good", "right");
  TestServer server(options);
  // As many as fit, with calls under way: idle ones would give way.
  std::deque<Http2Client> held;
  EXPECT_TRUE(WaitFor([&] {
    held.emplace_back(server.server().grpc_port());
    held.back().Open(1, "/grpc.health.v1.Health/Check");
    return !held.back().Settle();
  }));
  EXPECT_THAT(HttpGet(server.server().http_port(), "/health"),
              HasSubstr("503"));
  EXPECT_THAT(HttpGet(server.server().metrics_port(), "/health"),
              HasSubstr("200 OK"));
}

}  // namespace
}  // namespace recurve
