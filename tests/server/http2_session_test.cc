#include "server/grpc/http2_session.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/http2.h"

namespace recurve {
namespace {

using http2::BigEndian;
using http2::CallHeaders;
using http2::Frame;
using http2::Preface;
using testing::ElementsAre;
using Result = Http2Session::Result;

constexpr int kData = 0;
constexpr int kHeaders = 1;
constexpr int kReset = 3;
constexpr int kSettings = 4;
constexpr int kPing = 6;
constexpr int kGoAway = 7;
constexpr int kWindowUpdate = 8;
constexpr int kContinuation = 9;
constexpr int kEndStream = 1;
constexpr int kAck = 1;
constexpr int kEndHeaders = 4;
constexpr int kPadded = 8;

constexpr Http2Session::Settings kLimits = {100, 8192};

// Writes down what it hears, and gives what it is told to.
class Recorder : public Http2Session::Handler {
 public:
  bool OnBeginFrame(uint8_t type, uint8_t, size_t length, int32_t) override {
    begun.push_back(absl::StrCat(int{type}, ":", length));
    return stop_at_frame != static_cast<int>(begun.size());
  }
  bool OnBeginCall(int32_t stream) override {
    Log("call ", stream);
    return true;
  }
  bool OnHeader(int32_t, absl::string_view name, absl::string_view) override {
    headers.emplace_back(name);
    return true;
  }
  void OnHeadDone(int32_t stream, bool end_stream) override {
    Log(end_stream ? "last head " : "head ", stream);
  }
  void OnData(int32_t stream, absl::string_view bytes) override {
    data[stream].append(bytes.data(), bytes.size());
  }
  void OnEndStream(int32_t stream) override { Log("end ", stream); }
  bool OnReset(int32_t stream) override {
    Log("reset ", stream);
    return true;
  }
  bool OnInvalid() override {
    events.emplace_back("invalid");
    return true;
  }
  void OnStreamClosed(int32_t stream) override { Log("closed ", stream); }
  void OnSentFrame(int32_t stream, bool ends_stream) override {
    Log(ends_stream ? "sent last " : "sent ", stream);
  }
  size_t Pack(int32_t stream, uint8_t* buffer, size_t max,
              bool* more) override {
    std::string& rest = output[stream];
    const size_t count = std::min(max, rest.size());
    std::copy_n(rest.data(), count, buffer);
    rest.erase(0, count);
    *more = !rest.empty() || !ends[stream];
    if (!*more) session->SubmitTrailers(stream, {{"grpc-status", "0"}});
    return count;
  }

  Http2Session* session = nullptr;
  int stop_at_frame = -1;
  std::vector<std::string> begun;  // frames: "type:length"
  std::vector<std::string> headers;
  std::vector<std::string> events;
  std::map<int32_t, std::string> data;
  std::map<int32_t, std::string> output;
  std::map<int32_t, bool> ends;  // whether `output` is all there will be

 private:
  void Log(const char* what, int32_t stream) {
    events.push_back(absl::StrCat(what, stream));
  }
};

struct Sent {
  int type;
  int flags;
  uint32_t stream;
  std::string payload;
};

uint32_t Number(const std::string& bytes, size_t at, size_t count) {
  uint32_t number = 0;
  for (size_t i = at; i < at + count; ++i) {
    number = number << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return number;
}

std::vector<Sent> Frames(const std::string& bytes) {
  std::vector<Sent> frames;
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t size = Number(bytes, at, 3);
    frames.push_back({static_cast<uint8_t>(bytes[at + 3]),
                      static_cast<uint8_t>(bytes[at + 4]),
                      Number(bytes, at + 5, 4), bytes.substr(at + 9, size)});
    at += 9 + size;
  }
  return frames;
}

class Http2SessionTest : public testing::Test {
 protected:
  Http2SessionTest() : session_(kLimits, &handler_) {
    handler_.session = &session_;
  }
  // What the session has to send, all of it.
  std::vector<Sent> Produce() {
    std::string bytes;
    EXPECT_TRUE(session_.Produce(size_t{1} << 30, &bytes));
    EXPECT_FALSE(session_.wants_write());
    return Frames(bytes);
  }
  // Through the preface and SETTINGS.
  void Begin() {
    EXPECT_EQ(session_.Receive(Preface() + Frame(kSettings, kAck, 0, "")),
              Result::kOk);
    Produce();
  }
  Result Open(uint32_t stream, int flags = 0) {
    return session_.Receive(
        Frame(kHeaders, kEndHeaders | flags, stream, CallHeaders("/a/b")));
  }
  // Window that the frames give back, of a stream.
  static uint32_t Granted(const std::vector<Sent>& frames, uint32_t stream) {
    uint32_t bytes = 0;
    for (const Sent& frame : frames) {
      if (frame.type == kWindowUpdate && frame.stream == stream) {
        bytes += Number(frame.payload, 0, 4);
      }
    }
    return bytes;
  }
  static int Count(const std::vector<Sent>& frames, int type) {
    return static_cast<int>(
        std::count_if(frames.begin(), frames.end(),
                      [&](const Sent& frame) { return frame.type == type; }));
  }

  Recorder handler_;
  Http2Session session_;
};

TEST_F(Http2SessionTest, BeginsWithItsSettings) {
  const auto frames = Produce();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].type, kSettings);
  std::map<uint32_t, uint32_t> settings;
  for (size_t at = 0; at < frames[0].payload.size(); at += 6) {
    settings[Number(frames[0].payload, at, 2)] =
        Number(frames[0].payload, at + 2, 4);
  }
  EXPECT_EQ(settings[3], kLimits.max_streams);
  EXPECT_EQ(settings[6], kLimits.max_head_bytes);
}

TEST_F(Http2SessionTest, TellsOfACallWhereverTheBytesAreSplit) {
  const std::string head = CallHeaders("/a/b");
  const std::string data =
      Frame(kData, 0, 1, "hello ") + Frame(kData, kEndStream, 1, "world");
  const std::string in_one = Preface() + Frame(kHeaders, kEndHeaders, 1, head);
  const std::string in_three =
      Preface() + Frame(kHeaders, 0, 1, head.substr(0, 30)) +
      Frame(kContinuation, 0, 1, "") +
      Frame(kContinuation, kEndHeaders, 1, head.substr(30));
  for (const std::string& bytes : {in_one + data, in_three + data}) {
    // To Debian's library each read of a part of its 9 bytes is a CONTINUATION
    // frame, of which it takes no more than 8.
    size_t part = bytes.size() > (in_one + data).size() ? 4 : 1;
    for (; part <= bytes.size(); ++part) {
      Recorder handler;
      Http2Session session(kLimits, &handler);
      for (size_t at = 0; at < bytes.size(); at += part) {
        ASSERT_EQ(session.Receive(absl::string_view(bytes).substr(at, part)),
                  Result::kOk)
            << part;
      }
      EXPECT_THAT(handler.events, ElementsAre("call 1", "head 1", "end 1"));
      EXPECT_EQ(handler.data[1], "hello world");
      EXPECT_THAT(handler.headers,
                  ElementsAre(":method", ":scheme", ":path", ":authority", "te",
                              "content-type"));
    }
  }
}

TEST_F(Http2SessionTest, AnswersAndTakesNoMoreOfTheCall) {
  Begin();
  EXPECT_EQ(Open(1, kEndStream), Result::kOk);
  session_.SubmitHead(1, {{":status", "200"}}, /*with_body=*/true);
  handler_.output[1] = std::string(40'000, 'x');
  handler_.ends[1] = true;
  const auto frames = Produce();
  // As large as a frame may be, and what is left.
  ASSERT_EQ(frames.size(), 5u);
  EXPECT_EQ(frames[0].type, kHeaders);
  std::string data;
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(frames[i].type, kData);
    EXPECT_EQ(frames[i].flags & kEndStream, 0);
    data += frames[i].payload;
  }
  EXPECT_EQ(data, std::string(40'000, 'x'));
  EXPECT_EQ(frames[4].type, kHeaders);
  EXPECT_NE(frames[4].flags & kEndStream, 0);
  EXPECT_EQ(handler_.events.back(), "closed 1");
  EXPECT_FALSE(session_.is_remote_open(1));
}

TEST_F(Http2SessionTest, OutputWaitsUntilThereIsSome) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  session_.SubmitHead(1, {{":status", "200"}}, /*with_body=*/true);
  EXPECT_EQ(Produce().size(), 1u);
  handler_.output[1] = "a";
  EXPECT_EQ(Produce().size(), 0u);
  session_.Resume(1);
  auto frames = Produce();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].payload, "a");
  // The status may come when all output is gone.
  session_.SubmitTrailers(1, {{"grpc-status", "0"}});
  frames = Produce();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_NE(frames[0].flags & kEndStream, 0);
  EXPECT_TRUE(session_.is_remote_open(1));
  session_.Reset(1, 0);
  frames = Produce();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].type, kReset);
  EXPECT_EQ(handler_.events.back(), "closed 1");
}

TEST_F(Http2SessionTest, ProduceStopsBehindAsMuchAsIsAskedFor) {
  Begin();
  EXPECT_EQ(Open(1, kEndStream), Result::kOk);
  session_.SubmitHead(1, {{":status", "200"}}, /*with_body=*/true);
  handler_.output[1] = std::string(60'000, 'x');
  std::string bytes;
  EXPECT_TRUE(session_.Produce(1, &bytes));
  EXPECT_EQ(Frames(bytes).size(), 1u);
  EXPECT_TRUE(session_.wants_write());
  // What is in `bytes` already counts.
  const size_t before = bytes.size();
  EXPECT_TRUE(session_.Produce(before, &bytes));
  EXPECT_EQ(bytes.size(), before);
  EXPECT_TRUE(session_.Produce(before + 1, &bytes));
  EXPECT_EQ(Frames(bytes).size(), 2u);
}

// However much the oldest has.
TEST_F(Http2SessionTest, CallsAreSentInTurn) {
  Begin();
  EXPECT_EQ(session_.Receive(Frame(kSettings, 0, 0,
                                   BigEndian(4, 2) + BigEndian(1 << 30, 4)) +
                             Frame(kWindowUpdate, 0, 0, BigEndian(1 << 30, 4))),
            Result::kOk);
  for (const uint32_t stream : {1, 3, 5}) {
    // A stream that asks for more than the others.
    const std::string first =
        stream == 3 ? http2::Header("priority", "u=0, i=?0") : "";
    EXPECT_EQ(session_.Receive(Frame(kHeaders, kEndHeaders | kEndStream, stream,
                                     CallHeaders("/a/b") + first)),
              Result::kOk);
    session_.SubmitHead(stream, {{":status", "200"}}, /*with_body=*/true);
    handler_.output[stream] = std::string(8'000'000, 'x');
  }
  std::string bytes;
  EXPECT_TRUE(session_.Produce(3'000'000, &bytes));
  std::map<uint32_t, size_t> sent;
  for (const Sent& frame : Frames(bytes)) {
    if (frame.type == kData) sent[frame.stream] += frame.payload.size();
  }
  for (const uint32_t stream : {1, 3, 5}) {
    EXPECT_NEAR(static_cast<double>(sent[stream]), 1e6, 5e4) << stream;
  }
}

// Its length is the frame's, with the padding.
TEST_F(Http2SessionTest, PaddingIsGivenBackByItself) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  const std::string payload =
      std::string(1, '\xff') + std::string(10, 'x') + std::string(255, '\0');
  const int kFrames = 65'535 / static_cast<int>(payload.size());
  std::string frames;
  for (int i = 0; i < kFrames; ++i) frames += Frame(kData, kPadded, 1, payload);
  EXPECT_EQ(session_.Receive(frames), Result::kOk);
  EXPECT_EQ(handler_.data[1], std::string(10 * kFrames, 'x'));
  session_.ConsumeConnection(10 * kFrames);
  session_.ConsumeStream(1, 10 * kFrames);
  const auto sent = Produce();
  // All but what is too little for a frame of its own.
  const uint32_t used = static_cast<uint32_t>(kFrames * payload.size());
  EXPECT_GE(Granted(sent, 0), used / 2);
  EXPECT_GE(Granted(sent, 1), used / 2);
  EXPECT_LE(Granted(sent, 0), used);
  EXPECT_LE(Granted(sent, 1), used);
}

TEST_F(Http2SessionTest, WindowIsGivenBackOnlyWhereDataWasConsumed) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  EXPECT_EQ(session_.ReceivableBytes(1), 65'535);
  std::string frames;
  for (int i = 0; i < 3; ++i) {
    frames += Frame(kData, 0, 1, std::string(16'384, 'x'));
  }
  EXPECT_EQ(session_.Receive(frames), Result::kOk);
  EXPECT_EQ(session_.ReceivableBytes(1), 65'535 - 3 * 16'384);
  EXPECT_EQ(Granted(Produce(), 0), 0u);
  session_.ConsumeConnection(3 * 16'384);
  auto sent = Produce();
  EXPECT_EQ(Granted(sent, 0), 3u * 16'384);
  EXPECT_EQ(Granted(sent, 1), 0u);
  session_.ConsumeStream(1, 3 * 16'384);
  sent = Produce();
  EXPECT_EQ(Granted(sent, 0), 0u);
  EXPECT_EQ(Granted(sent, 1), 3u * 16'384);
  EXPECT_EQ(session_.ReceivableBytes(1), 65'535);
}

TEST_F(Http2SessionTest, DataBeyondTheWindowResetsTheStream) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  std::string frames;
  for (int i = 0; i < 5; ++i) {
    // The connection's window goes on.
    session_.ConsumeConnection(16'384);
    frames += Frame(kData, 0, 1, std::string(16'384, 'x'));
  }
  session_.SetWindow(0, 1 << 20);
  EXPECT_EQ(session_.Receive(frames), Result::kOk);
  const auto sent = Produce();
  EXPECT_EQ(Count(sent, kReset), 1);
  EXPECT_EQ(Count(sent, kGoAway), 0);
  EXPECT_EQ(handler_.events.back(), "closed 1");
}

// Not even if it was not reported as consumed.
TEST_F(Http2SessionTest, DataOfClosedStreamsUsesNoWindowUp) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  session_.Reset(1, 0);
  Produce();
  uint32_t granted = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(session_.Receive(Frame(kData, 0, 1, std::string(16'384, 'x'))),
              Result::kOk);
    granted += Granted(Produce(), 0);
  }
  EXPECT_GT(granted, 98u * 16'384);
  EXPECT_EQ(handler_.data[1], "");
}

TEST_F(Http2SessionTest, AWiderWindowIsAnnounced) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  session_.SetWindow(0, 1 << 20);
  session_.SetWindow(1, 1 << 20);
  const auto sent = Produce();
  EXPECT_EQ(Granted(sent, 0), (1u << 20) - 65'535);
  EXPECT_EQ(Granted(sent, 1), (1u << 20) - 65'535);
  EXPECT_EQ(session_.ReceivableBytes(1), 1 << 20);
  EXPECT_EQ(session_.ReceivableBytes(3), 0);
}

TEST_F(Http2SessionTest, TellsOfResets) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  EXPECT_EQ(session_.Receive(Frame(kReset, 0, 1, BigEndian(8, 4))),
            Result::kOk);
  EXPECT_THAT(handler_.events,
              ElementsAre("call 1", "head 1", "reset 1", "closed 1"));
  // A stream that is closed already is not closed again.
  EXPECT_EQ(session_.Receive(Frame(kReset, 0, 1, BigEndian(8, 4))),
            Result::kOk);
  EXPECT_THAT(handler_.events, ElementsAre("call 1", "head 1", "reset 1",
                                           "closed 1", "reset 1"));
  // The answer of a call that is gone goes nowhere.
  session_.SubmitHead(1, {{":status", "200"}}, /*with_body=*/false);
  EXPECT_EQ(Produce().size(), 0u);
}

TEST_F(Http2SessionTest, AHeadAgainstTheProtocolCostsItsCallAlone) {
  Begin();
  const std::string no_path =
      http2::Header(":method", "POST") + http2::Header(":scheme", "http");
  EXPECT_EQ(
      session_.Receive(Frame(kHeaders, kEndHeaders | kEndStream, 1, no_path)),
      Result::kOk);
  EXPECT_EQ(handler_.events.back(), "invalid");
  EXPECT_EQ(Open(3), Result::kOk);
  EXPECT_EQ(handler_.events.back(), "head 3");
  const auto sent = Produce();
  EXPECT_EQ(Count(sent, kReset), 1);
  EXPECT_EQ(Count(sent, kGoAway), 0);
  EXPECT_FALSE(session_.failed());
}

TEST_F(Http2SessionTest, FramesAgainstTheProtocolEndTheSession) {
  Begin();
  EXPECT_EQ(session_.Receive(Frame(kData, 0, 1, "x")), Result::kOk);
  EXPECT_FALSE(session_.failed());
  const auto sent = Produce();
  EXPECT_EQ(Count(sent, kGoAway), 1);
  EXPECT_TRUE(session_.failed());
  EXPECT_TRUE(session_.done());
  // Nothing is looked at any more.
  EXPECT_EQ(Open(1), Result::kOk);
  EXPECT_THAT(handler_.events, ElementsAre());
}

TEST_F(Http2SessionTest, WhatIsNoHttp2IsMalformed) {
  EXPECT_EQ(session_.Receive("GET / HTTP/1.1\r\n\r\n"), Result::kMalformed);
}

TEST_F(Http2SessionTest, TheHandlerStopsIt) {
  handler_.stop_at_frame = 3;
  EXPECT_EQ(session_.Receive(Preface() + Frame(kPing, 0, 0, "12345678") +
                             Frame(kPing, 0, 0, "12345678") +
                             Frame(kPing, 0, 0, "12345678")),
            Result::kStopped);
  EXPECT_EQ(handler_.begun.size(), 3u);
}

TEST_F(Http2SessionTest, TooManyFramesThatAreToBeAnsweredAreAFlood) {
  Begin();
  std::string pings;
  for (int i = 0; i < 250; ++i) pings += Frame(kPing, 0, 0, "12345678");
  EXPECT_EQ(session_.Receive(pings), Result::kFlooded);
}

TEST_F(Http2SessionTest, AsksWhetherTheClientIsThere) {
  Begin();
  session_.Ping();
  const auto sent = Produce();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].type, kPing);
  EXPECT_EQ(sent[0].flags & kAck, 0);
}

TEST_F(Http2SessionTest, ShutsDownBehindTheCallsThatThereAre) {
  Begin();
  EXPECT_EQ(Open(1), Result::kOk);
  session_.ShutDown("enough");
  auto sent = Produce();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].type, kGoAway);
  EXPECT_EQ(Number(sent[0].payload, 0, 4), 1u);
  EXPECT_EQ(Number(sent[0].payload, 4, 4), 0u);
  EXPECT_EQ(sent[0].payload.substr(8), "enough");
  EXPECT_FALSE(session_.failed());
  EXPECT_FALSE(session_.done());
  // A new one is not looked at, the one that there was goes on.
  EXPECT_EQ(Open(3), Result::kOk);
  EXPECT_THAT(handler_.events, ElementsAre("call 1", "head 1"));
  EXPECT_EQ(session_.Receive(Frame(kData, kEndStream, 1, "x")), Result::kOk);
  EXPECT_EQ(handler_.data[1], "x");
  session_.SubmitHead(1, {{":status", "200"}}, /*with_body=*/false);
  sent = Produce();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].type, kHeaders);
  EXPECT_TRUE(session_.done());
}

// With no call left the connection is over.
TEST_F(Http2SessionTest, AClientMaySayGoAway) {
  Begin();
  EXPECT_EQ(Open(1, kEndStream), Result::kOk);
  EXPECT_EQ(
      session_.Receive(Frame(kGoAway, 0, 0, BigEndian(0, 4) + BigEndian(0, 4))),
      Result::kOk);
  EXPECT_FALSE(session_.done());
  session_.SubmitHead(1, {{":status", "200"}}, /*with_body=*/false);
  EXPECT_EQ(Produce().size(), 1u);
  EXPECT_TRUE(session_.done());
  EXPECT_FALSE(session_.failed());
}

TEST_F(Http2SessionTest, MoreCallsThanAllowedAreRefused) {
  Begin();
  for (uint32_t i = 0; i < kLimits.max_streams; ++i) {
    EXPECT_EQ(Open(1 + 2 * i), Result::kOk);
  }
  EXPECT_EQ(Open(1 + 2 * kLimits.max_streams), Result::kOk);
  EXPECT_EQ(Count(Produce(), kGoAway), 1);  // the client has seen the setting
}

TEST(Http2FramesTest, AreAsTheProtocolHasThem) {
  const auto away = Frames(Http2Session::GoAway(0x1020304, 11, "too much"));
  ASSERT_EQ(away.size(), 1u);
  EXPECT_EQ(away[0].type, kGoAway);
  EXPECT_EQ(away[0].stream, 0u);
  EXPECT_EQ(Number(away[0].payload, 0, 4), 0x1020304u);
  EXPECT_EQ(Number(away[0].payload, 4, 4), 11u);
  EXPECT_EQ(away[0].payload.substr(8), "too much");
  const auto reset = Frames(Http2Session::ResetFrame(0x1020305, 8));
  ASSERT_EQ(reset.size(), 1u);
  EXPECT_EQ(reset[0].type, kReset);
  EXPECT_EQ(reset[0].stream, 0x1020305u);
  EXPECT_EQ(reset[0].payload, BigEndian(8, 4));
}

}  // namespace
}  // namespace recurve
