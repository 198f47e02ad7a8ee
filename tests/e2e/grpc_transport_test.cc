// How calls over the gRPC transport go: with clients of gRPC, and frame by
// frame where such clients would not do what is tested.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/http2_client.h"
#include "tests/testing/stock_call.h"
#include "tests/testing/toy_service.h"

namespace recurve {
namespace {

using http2::Frame;
using http2::Header;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr uint32_t kNoError = 0;
constexpr uint32_t kCancel = 8;

// gRPC's, as the numbers of the protocol.
constexpr int kOk = 0;
constexpr int kDeadlineExceeded = 4;
constexpr int kInvalidArgument = 3;
constexpr int kResourceExhausted = 8;
constexpr int kUnimplemented = 12;
constexpr int kInternal = 13;

TEST(GrpcTransportTest, StockClientsTalkInBothDirections) {
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  StockCall call(channel, "/strange/Echo");
  for (const size_t size : {0, 1, 100, 65'530, 65'536, 1'000'000}) {
    const std::string message(size, 'x');
    EXPECT_TRUE(call.Write(message));
    EXPECT_EQ(call.Read(), message);
    StockCall other(channel, "/known/Echo");
    EXPECT_TRUE(other.WritesDone());
    EXPECT_TRUE(other.Finish().ok());
  }
  EXPECT_TRUE(call.WritesDone());
  EXPECT_EQ(call.Read(), std::nullopt);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_TRUE(WaitFor([&] { return server.service().alive() == 0; }));
}

TEST(GrpcTransportTest, MessagesMayBeSplitOverFramesInAnyWay) {
  ToyServer server;
  Http2Client client(server.port());
  const std::string all = GrpcMessage("one") + GrpcMessage("") +
                          GrpcMessage(std::string(40, 'x')) +
                          GrpcMessage("four");
  uint32_t stream = 1;
  for (size_t part = 1; part <= all.size(); ++part, stream += 2) {
    client.Open(stream, "/known/Echo");
    client.SendData(stream, all, /*end=*/true, part);
    const Http2Answer& answer = client.Await(stream);
    EXPECT_EQ(answer.status(), kOk) << part;
    EXPECT_EQ(answer.data, all) << part;
  }
  // With the end in a frame of its own.
  client.Open(stream, "/known/Echo");
  client.SendData(stream, all, /*end=*/false);
  client.Send(Frame(kHttp2Data, kHttp2EndStream, stream, ""));
  EXPECT_EQ(client.Await(stream).data, all);
  EXPECT_EQ(client.answer(stream).status(), kOk);
}

// Padding uses window like data, and is not read by the service.
TEST(GrpcTransportTest, PaddedMessagesArriveWhole) {
  ToyServer server;
  Http2Client client(server.port());
  const std::string message(500'000, 'x');
  client.Open(1, "/known/Echo");
  ASSERT_TRUE(client.SendData(1, GrpcMessage(message), /*end=*/true,
                              /*frame=*/100, /*padding=*/255));
  EXPECT_EQ(client.Await(1).status(), kOk);
  EXPECT_TRUE(client.answer(1).data == GrpcMessage(message));
}

TEST(GrpcTransportTest, AMessageMayHaveFourMebibytes) {
  ToyServer server;
  Http2Client client(server.port());
  const std::string most(4 << 20, 'x');
  client.Open(1, "/known/Hold");
  ASSERT_TRUE(client.SendData(1, GrpcMessage(most), /*end=*/false));
  ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
  EXPECT_EQ(server.service().message_bytes(), 4 << 20);
  // One more is refused by its prefix.
  client.Open(3, "/known/Hold");
  client.SendData(3, GrpcMessage(most + "x").substr(0, 100), /*end=*/false);
  EXPECT_EQ(client.Await(3).status(), kResourceExhausted);
  EXPECT_THAT(client.answer(3).message(), HasSubstr("4194305 bytes"));
  EXPECT_FALSE(client.go_away().has_value());
}

// All of them arrive, and none is stuck without window.
TEST(GrpcTransportTest, ManyLargeMessagesAtOnceArrive) {
  constexpr uint32_t kCalls = 20;
  const std::string message = GrpcMessage(std::string(300'000, 'x'));
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  Http2Client client(server.port());
  for (uint32_t i = 0; i < kCalls; ++i) client.Open(1 + 2 * i, "/known/Hold");
  for (size_t at = 0; at < message.size(); at += 10'000) {
    for (uint32_t i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(client.SendData(1 + 2 * i,
                                  absl::string_view(message).substr(at, 10'000),
                                  /*end=*/false));
    }
  }
  EXPECT_TRUE(WaitFor([&] { return server.service().messages() == kCalls; }));
}

TEST(GrpcTransportTest, CompressionIsRefused) {
  ToyServer server;
  Http2Client client(server.port());
  // Marked as compressed, by a client that has not said how.
  std::string message = GrpcMessage("x");
  message[0] = '\1';
  client.Open(1, "/known/Echo");
  client.SendData(1, message, /*end=*/true);
  EXPECT_EQ(client.Await(1).status(), kInternal);
  EXPECT_THAT(client.answer(1).message(), HasSubstr("compressed"));
  client.Open(3, "/known/Echo", 0, Header("grpc-encoding", "gzip"));
  EXPECT_EQ(client.Await(3).status(), kUnimplemented);
  EXPECT_EQ(client.answer(3).trailers.at("grpc-accept-encoding"), "identity");
  client.Open(5, "/known/Echo", kHttp2EndStream,
              Header("grpc-encoding", "identity"));
  EXPECT_EQ(client.Await(5).status(), kOk);
}

TEST(GrpcTransportTest, UnknownMethodsAreUnimplemented) {
  ToyServer server;
  Http2Client client(server.port());
  uint32_t stream = 1;
  for (const char* path : {"/known/Nothing", "/", "/known", "/known/Echo/",
                           "/known/echo", "/known/Echo?x=y", "*"}) {
    client.Open(stream, path, kHttp2EndStream);
    const Http2Answer& answer = client.Await(stream);
    // "*" is no path of a POST.
    if (answer.reset) {
      EXPECT_STREQ(path, "*");
    } else {
      EXPECT_EQ(answer.status(), kUnimplemented) << path;
      EXPECT_EQ(answer.head.at(":status"), "200");
    }
    stream += 2;
  }
  const auto channel = ChannelTo(server.address());
  EXPECT_EQ(StockCall(channel, "/known/Nothing").Finish().error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(GrpcTransportTest, WhatIsNoCallGetsAnHttpError) {
  ToyServer server;
  Http2Client client(server.port());
  const auto head = [](const std::string& verb, const std::string& type) {
    return Header(":method", verb) + Header(":scheme", "http") +
           Header(":path", "/known/Echo") + Header(":authority", "x") +
           (type.empty() ? "" : Header("content-type", type));
  };
  const auto status = [&](uint32_t stream, const std::string& block) {
    client.Send(Frame(kHttp2Headers, kHttp2EndHeaders | kHttp2EndStream, stream,
                      block));
    const Http2Answer& answer = client.Await(stream);
    EXPECT_TRUE(answer.ended);
    return answer.head.at(":status");
  };
  EXPECT_EQ(status(1, head("GET", "")), "405");
  EXPECT_EQ(status(3, head("PUT", "application/grpc")), "405");
  EXPECT_EQ(status(5, head("POST", "")), "415");
  EXPECT_EQ(status(7, head("POST", "application/json")), "415");
  EXPECT_EQ(status(9, head("POST", "application/grpc-web")), "415");
  EXPECT_EQ(status(11, head("POST", "application/grpc+proto")), "200");
  EXPECT_EQ(client.answer(11).status(), kOk);
  EXPECT_EQ(server.service().begun(), 1);
}

TEST(GrpcTransportTest, WhoClosesWithinAMessageIsTold) {
  ToyServer server;
  Http2Client client(server.port());
  uint32_t stream = 1;
  for (const size_t sent : {1, 4, 5, 9}) {
    client.Open(stream, "/known/Hold");
    client.SendData(stream, GrpcMessage("hello").substr(0, sent), /*end=*/true);
    EXPECT_EQ(client.Await(stream).status(), kInternal) << sent;
    EXPECT_THAT(client.answer(stream).message(), HasSubstr("within a message"));
    stream += 2;
  }
  EXPECT_TRUE(WaitFor([&] { return server.service().alive() == 0; }));
}

TEST(GrpcTransportTest, ACallEndsAtItsDeadline) {
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  StockCall call(channel, "/known/Hold", milliseconds(50));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitFor([&] { return server.service().alive() == 0; }));

  Http2Client client(server.port());
  client.Open(1, "/known/Hold", 0, Header("grpc-timeout", "20m"));
  EXPECT_EQ(client.Await(1).status(), kDeadlineExceeded);
  client.Open(3, "/known/Hold", 0, Header("grpc-timeout", "0n"));
  EXPECT_EQ(client.Await(3).status(), kDeadlineExceeded);
  client.Open(5, "/known/Hold", 0, Header("grpc-timeout", "soon"));
  EXPECT_EQ(client.Await(5).status(), kInternal);
  EXPECT_THAT(client.answer(5).message(), HasSubstr("grpc-timeout"));
  client.Open(7, "/known/Echo", kHttp2EndStream,
              Header("grpc-timeout", "99999999H"));
  EXPECT_EQ(client.Await(7).status(), kOk);
  const auto ended = server.service().ended();
  ASSERT_GE(ended.size(), 3u);
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(ended[i].code(), absl::StatusCode::kDeadlineExceeded);
  }
}

// A message that has begun cannot be followed by a status.
TEST(GrpcTransportTest, ADeadlineWithinAMessageResetsTheCall) {
  ToyServer server;
  Http2Client client(server.port());
  client.set_grants_window(false);
  client.Open(1, "/known/Fill", 0, Header("grpc-timeout", "200m"));
  client.SendData(1, GrpcMessage("1 100000"), /*end=*/true);
  EXPECT_EQ(client.Await(1).reset, kCancel);
  EXPECT_EQ(client.answer(1).data.size(), 65'535u);
  const auto ended = server.service().ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(GrpcTransportTest, ServicesHearOfCancelledCalls) {
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  {
    StockCall call(channel, "/known/Hold");
    ASSERT_TRUE(call.Write("x"));
    ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
    call.Cancel();
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(WaitFor([&] { return server.service().ended().size() == 1; }));
  EXPECT_EQ(server.service().ended()[0].code(), absl::StatusCode::kCancelled);
  // And of clients that leave.
  {
    Http2Client client(server.port());
    client.Open(1, "/known/Hold");
    ASSERT_TRUE(WaitFor([&] { return server.service().begun() == 2; }));
  }
  ASSERT_TRUE(WaitFor([&] { return server.service().ended().size() == 2; }));
  EXPECT_EQ(server.service().ended()[1].code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(WaitFor([&] { return server.service().alive() == 0; }));
}

TEST(GrpcTransportTest, AStatusWithoutMessagesIsOneHead) {
  ToyServer server;
  Http2Client client(server.port());
  client.Open(1, "/known/Refuse", kHttp2EndStream);
  const Http2Answer& answer = client.Await(1);
  EXPECT_TRUE(answer.ended);
  EXPECT_EQ(answer.head, answer.trailers);
  EXPECT_EQ(answer.head.at(":status"), "200");
  EXPECT_EQ(answer.head.at("content-type"), "application/grpc");
  EXPECT_EQ(answer.status(), kResourceExhausted);
  EXPECT_EQ(answer.message(), "too much to do");
  EXPECT_FALSE(answer.reset.has_value());
}

// Further input of the client is not awaited.
TEST(GrpcTransportTest, ACallThatEndsEarlyIsResetWithoutAnError) {
  ToyServer server;
  Http2Client client(server.port());
  client.Open(1, "/known/Refuse");
  ASSERT_TRUE(
      client.ReadUntil([&] { return client.answer(1).reset.has_value(); }));
  EXPECT_EQ(client.answer(1).reset, kNoError);
  EXPECT_EQ(client.answer(1).status(), kResourceExhausted);
  // What was on its way does no harm.
  client.SendData(1, std::string(60'000, 'x'), /*end=*/true);
  client.Open(3, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(3).status(), kOk);
  // Nor does a stock client mind.
  const auto channel = ChannelTo(server.address());
  StockCall call(channel, "/known/Refuse");
  call.Write(std::string(1'000'000, 'x'));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// What does not fit a head must not leave the client without any.
TEST(GrpcTransportTest, ALongStatusMessageArrivesCut) {
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  for (const int size : {0, 1, 2048, 2049, 10'000, 1'000'000}) {
    StockCall call(channel, "/known/Fail", std::chrono::seconds(30));
    EXPECT_TRUE(call.Write(absl::StrCat(size)));
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL) << size;
    EXPECT_EQ(
        status.error_message().rfind(std::string(std::min(size, 2048), 'x'), 0),
        0u);
    EXPECT_LE(status.error_message().size(), 2100u);
  }
}

// 10, 20 and 60 KiB; stock clients see the limit and do not send them.
TEST(GrpcTransportTest, TooMuchMetadataFailsThatCallOnly) {
  ToyServer server;
  Http2Client client(server.port());
  client.Open(1, "/known/Echo");
  uint32_t stream = 3;
  for (const size_t kib : {10, 20, 60}) {
    std::string block = http2::CallHeaders("/known/Echo");
    for (size_t i = 0; i < kib; ++i) {
      block += Header(absl::StrCat("x-", i), std::string(1024, 'x'));
    }
    // In as few frames as can be.
    for (size_t at = 0; at < block.size(); at += 16'384) {
      const bool last = at + 16'384 >= block.size();
      client.Send(Frame(at == 0 ? kHttp2Headers : kHttp2Continuation,
                        last ? kHttp2EndHeaders : 0, stream,
                        block.substr(at, 16'384)));
    }
    EXPECT_EQ(client.Await(stream).status(), kResourceExhausted) << kib;
    EXPECT_THAT(client.answer(stream).message(), HasSubstr("at most 8192"));
    EXPECT_EQ(client.answer(1).status(), -1);
    stream += 2;
  }
  client.SendData(1, GrpcMessage("still here"), /*end=*/true);
  EXPECT_EQ(client.Await(1).status(), kOk);
  EXPECT_EQ(client.answer(1).data, GrpcMessage("still here"));
  EXPECT_EQ(server.service().begun(), 1);
}

// As a client's channel that is closed when its last call is over.
TEST(GrpcTransportTest, AfterAGoAwayOfTheClientItsCallsEnd) {
  ToyServer server;
  Http2Client client(server.port());
  client.Open(1, "/known/Hold");
  client.SendData(1, GrpcMessage("x"), /*end=*/false);
  ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
  client.Send(Frame(kHttp2GoAway, 0, 0, std::string(8, '\0')));
  ASSERT_TRUE(client.Settle());
  server.service().FinishHeld();
  EXPECT_EQ(client.Await(1).status(), kOk);
  client.AwaitEnd();
  EXPECT_FALSE(client.go_away().has_value());
  EXPECT_TRUE(WaitFor([&] { return server.server().connections() == 0; }));
}

TEST(GrpcTransportTest, StopLetsCallsThatRunFinish) {
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  StockCall call(channel, "/known/Hold");
  ASSERT_TRUE(call.Write("x"));
  ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
  Http2Client client(server.port());
  client.Open(1, "/known/Hold");
  client.SendData(1, GrpcMessage("x"), /*end=*/false);
  ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 2; }));
  std::atomic<bool> stopped = false;
  std::thread stopping([&] {
    server.server().Stop(std::chrono::steady_clock::now() +
                         std::chrono::seconds(60));
    stopped = true;
  });
  ASSERT_TRUE(client.AwaitGoAway());
  EXPECT_EQ(client.go_away()->error, kNoError);
  EXPECT_EQ(client.go_away()->last_stream, 1u);
  // A new call is not begun.
  client.Open(3, "/known/Echo", kHttp2EndStream);
  ASSERT_TRUE(client.Settle());
  EXPECT_EQ(server.service().begun(), 2);
  EXPECT_FALSE(stopped);
  server.service().WriteHeld("the end");
  ASSERT_TRUE(WaitFor([&] { return server.service().written() == 2; }));
  server.service().FinishHeld();
  EXPECT_EQ(client.Await(1).status(), kOk);
  EXPECT_EQ(client.answer(1).data, GrpcMessage("the end"));
  client.AwaitEnd();
  EXPECT_EQ(call.Read(), "the end");
  EXPECT_TRUE(call.Finish().ok());
  stopping.join();
  EXPECT_EQ(server.server().connections(), 0);
  EXPECT_EQ(server.service().alive(), 0);
}

TEST(GrpcTransportTest, StopBreaksOffWhatIsLeftAtItsDeadline) {
  ToyServer server;
  const auto channel = ChannelTo(server.address());
  StockCall call(channel, "/known/Hold");
  ASSERT_TRUE(call.Write("x"));
  ASSERT_TRUE(WaitFor([&] { return server.service().messages() == 1; }));
  server.server().Stop(std::chrono::steady_clock::now() + milliseconds(50));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server.service().alive(), 0);
  ASSERT_EQ(server.service().ended().size(), 1u);
  EXPECT_EQ(server.service().ended()[0].code(), absl::StatusCode::kUnavailable);
}

TEST(GrpcTransportTest, AMissingRequestIsAnError) {
  TestServer server;
  Http2Client client(server.server().grpc_port());
  client.Open(1, "/recurve.v1.Control/GetLoad", kHttp2EndStream);
  EXPECT_EQ(client.Await(1).status(), kInvalidArgument);
  EXPECT_THAT(client.answer(1).message(), HasSubstr("the request is missing"));
  client.Open(3, "/recurve.v1.Inference/Generate", kHttp2EndStream);
  EXPECT_EQ(client.Await(3).status(), kInvalidArgument);
  EXPECT_THAT(client.answer(3).message(), HasSubstr("the request is missing"));
  // Nothing was asked, and nothing is wrong.
  client.Open(5, "/recurve.v1.Inference/Decode", kHttp2EndStream);
  EXPECT_EQ(client.Await(5).status(), kOk);
  server.ExpectIdle();
}

TEST(GrpcTransportTest, WatchingAnUnknownServiceIsToldSo) {
  using grpc::health::v1::HealthCheckResponse;
  TestServer server;
  const auto stub = grpc::health::v1::Health::NewStub(server.Channel());
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("unknown");
  const auto watch = stub->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace recurve
