// HTTP/2 on the gRPC port, as RFC 9113 has it, by the cases of h2spec.

#include "tests/e2e/http2_conformance.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "nghttp2/nghttp2.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve::http2 {
namespace {

// Only a test that fails waits so long.
constexpr std::chrono::seconds kPatience{10};
constexpr size_t kFrameHead = 9;

struct Received {
  int type;
  int flags;
  uint32_t stream;
  std::string payload;

  bool ends_stream() const {
    return (type == kData || type == kHeaders) && (flags & kEndStream) != 0;
  }
  // In the payload.
  uint32_t Number(size_t at, size_t bytes) const {
    uint32_t value = 0;
    for (size_t i = at; i < at + bytes && i < payload.size(); ++i) {
      value = value << 8 | static_cast<uint8_t>(payload[i]);
    }
    return value;
  }
  std::string Text() const {
    const char* const names[] = {
        "DATA",         "HEADERS", "PRIORITY", "RST_STREAM",    "SETTINGS",
        "PUSH_PROMISE", "PING",    "GOAWAY",   "WINDOW_UPDATE", "CONTINUATION"};
    std::string text = absl::StrCat(
        type < 10 ? names[type] : absl::StrCat("type ", type), " of ",
        payload.size(), " bytes, flags ", flags, ", stream ", stream);
    if (type == kReset) absl::StrAppend(&text, ", error ", Number(0, 4));
    if (type == kGoAway) {
      absl::StrAppend(&text, ", error ", Number(4, 4), " \"",
                      payload.substr(std::min<size_t>(8, payload.size())),
                      "\"");
    }
    return text;
  }
};

// A client that sends what it is told to and reads frame by frame.
class Peer {
 public:
  explicit Peer(int port) : connection_(port) {
    RECURVE_CHECK(nghttp2_hd_inflate_new(&decoder_) == 0);
  }
  ~Peer() { nghttp2_hd_inflate_del(decoder_); }

  // The server may have closed.
  void Send(const std::string& bytes) { connection_.Send(bytes); }
  // None: the connection is closed, or silent for kPatience.
  std::optional<Received> Next();

  bool closed() const { return closed_; }
  // What HEADERS frames on the stream brought so far.
  std::string Field(uint32_t stream, const std::string& name) {
    return fields_[stream][name];
  }
  // The server's value; 0: not sent.
  uint32_t setting(int id) { return settings_[id]; }
  std::string log() const { return absl::StrJoin(log_, "; "); }

 private:
  bool Fill(size_t bytes);
  void Decode(const Received& frame);

  HttpConnection connection_;
  nghttp2_hd_inflater* decoder_ = nullptr;
  std::string buffer_;
  bool closed_ = false;
  std::map<uint32_t, std::map<std::string, std::string>> fields_;
  std::map<int, uint32_t> settings_;
  std::vector<std::string> log_;
};

bool Peer::Fill(size_t bytes) {
  while (buffer_.size() < bytes) {
    if (!connection_.Readable(kPatience)) {
      log_.push_back("nothing for long");
      return false;
    }
    const std::string some = connection_.ReadSome();
    if (some.empty()) {
      closed_ = true;
      log_.push_back("the end");
      return false;
    }
    buffer_ += some;
  }
  return true;
}

std::optional<Received> Peer::Next() {
  if (!Fill(kFrameHead)) return std::nullopt;
  const Received head = {0, 0, 0, buffer_.substr(0, kFrameHead)};
  const size_t size = head.Number(0, 3);
  if (!Fill(kFrameHead + size)) return std::nullopt;
  Received frame = {static_cast<int>(head.Number(3, 1)),
                    static_cast<int>(head.Number(4, 1)), head.Number(5, 4),
                    buffer_.substr(kFrameHead, size)};
  buffer_.erase(0, kFrameHead + size);
  log_.push_back(frame.Text());
  if (frame.type == kHeaders) Decode(frame);
  for (size_t at = 0; frame.type == kSettings && at < size; at += 6) {
    settings_[static_cast<int>(frame.Number(at, 2))] = frame.Number(at + 2, 4);
  }
  return frame;
}

// The server has no reason to pad or to split its heads.
void Peer::Decode(const Received& frame) {
  EXPECT_EQ(frame.flags & ~kEndStream, kEndHeaders);
  const auto* in = reinterpret_cast<const uint8_t*>(frame.payload.data());
  size_t left = frame.payload.size();
  while (true) {
    nghttp2_nv field;
    int flags = 0;
    const ssize_t used =
        nghttp2_hd_inflate_hd2(decoder_, &field, &flags, in, left, 1);
    if (used < 0) {
      ADD_FAILURE() << "HPACK: " << nghttp2_strerror(static_cast<int>(used));
      return;
    }
    in += used;
    left -= static_cast<size_t>(used);
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
      fields_[frame.stream][std::string(
          reinterpret_cast<const char*>(field.name), field.namelen)] =
          std::string(reinterpret_cast<const char*>(field.value),
                      field.valuelen);
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) break;
  }
  nghttp2_hd_inflate_end_headers(decoder_);
}

enum class Verdict { kGoOn, kRight, kWrong };

Verdict Judge(const Wait& wait, const Received& frame, Peer& peer) {
  using For = Wait::For;
  const auto right_if = [](bool condition) {
    return condition ? Verdict::kRight : Verdict::kWrong;
  };
  const auto is_meant = [&](uint32_t code) {
    return std::find(wait.codes.begin(), wait.codes.end(), code) !=
           wait.codes.end();
  };
  const bool ours = frame.stream == wait.stream;
  if (wait.what == For::kServerSettings) {
    return right_if(frame.type == kSettings && (frame.flags & kAck) == 0);
  }
  switch (frame.type) {
    case kGoAway:
      switch (wait.what) {
        case For::kGoAway:
        case For::kStreamError:
        case For::kConnectionError:
          return right_if(is_meant(frame.Number(4, 4)));
        case For::kEnd:
        case For::kPongOrEnd:
          return Verdict::kGoOn;
        default:
          return Verdict::kWrong;
      }
    case kReset:
      // An answer that came before the request was whole.
      if (frame.Number(0, 4) == kNoError) return Verdict::kGoOn;
      if (wait.what == For::kReset || wait.what == For::kStreamError) {
        return right_if(ours && is_meant(frame.Number(0, 4)));
      }
      // Calls that the end of the connection ends.
      return wait.what == For::kGoAway || wait.what == For::kConnectionError
                 ? Verdict::kGoOn
                 : Verdict::kWrong;
    case kSettings:
      return wait.what == For::kSettingsAck && (frame.flags & kAck) != 0
                 ? Verdict::kRight
                 : Verdict::kGoOn;
    case kPing:
      if (wait.what != For::kPong && wait.what != For::kPongOrEnd) {
        return Verdict::kGoOn;
      }
      return right_if((frame.flags & kAck) != 0 && frame.payload == wait.text);
    default:
      break;
  }
  if (!ours) return Verdict::kGoOn;
  if (wait.what == For::kHead && frame.type == kHeaders) {
    return right_if(peer.Field(wait.stream, ":status") == "200");
  }
  if (wait.what == For::kData && frame.type == kData) {
    return right_if(frame.payload.size() == wait.size);
  }
  if (!frame.ends_stream()) return Verdict::kGoOn;
  const std::string status = peer.Field(wait.stream, ":status");
  switch (wait.what) {
    case For::kServed:
      return right_if(status == "200" &&
                      peer.Field(wait.stream, "grpc-status") == "0");
    case For::kAnswered:
      return right_if(status == wait.text);
    case For::kHead:
    case For::kData:
      return Verdict::kWrong;
    default:
      return Verdict::kGoOn;
  }
}

bool AllowsEnd(const Wait& wait) {
  switch (wait.what) {
    case Wait::For::kPongOrEnd:
    case Wait::For::kStreamError:
    case Wait::For::kConnectionError:
    case Wait::For::kEnd:
      return true;
    default:
      return false;
  }
}

bool Take(const Step& step, Peer& peer) {
  peer.Send(step.send);
  while (const auto frame = peer.Next()) {
    const Verdict verdict = Judge(step.wait, *frame, peer);
    if (verdict != Verdict::kGoOn) return verdict == Verdict::kRight;
  }
  return peer.closed() && AllowsEnd(step.wait);
}

// The server speaks first. What it sends last acknowledges all that was sent,
// so that no later step waits in the client's system.
std::vector<Step> Handshake() {
  return {
      {"", ServerSettings()},
      {kMagic + Settings("") + Frame(kSettings, kAck, 0, ""), SettingsAck()}};
}

class Http2Test : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    ServerOptions options = DemoOptions();
    // So that a test reaches the limit of a connection's streams.
    options.engine.max_num_seqs = 4;
    options.engine.max_queued_requests = 4;
    server_ = std::make_unique<TestServer>(options);
  }
  static void TearDownTestSuite() { server_.reset(); }

  static int port() { return server_->server().grpc_port(); }
  static void Run(Peer& peer, const std::vector<Step>& steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      ASSERT_TRUE(Take(steps[i], peer))
          << "step " << i + 1 << " of " << steps.size() << " after "
          << peer.log();
    }
  }

 private:
  static std::unique_ptr<TestServer> server_;
};
std::unique_ptr<TestServer> Http2Test::server_;

TEST_P(Http2Test, Conforms) {
  Peer peer(port());
  std::vector<Step> steps;
  if (GetParam().after_preface) steps = Handshake();
  steps.insert(steps.end(), GetParam().steps.begin(), GetParam().steps.end());
  Run(peer, steps);
}

std::string Calls(uint32_t count) {
  std::string calls;
  for (uint32_t i = 0; i < count; ++i) calls += Open(1 + 2 * i);
  return calls;
}

// 5.1.2.
TEST_F(Http2Test, TakesAsManyStreamsAsItSays) {
  Peer peer(port());
  Run(peer, Handshake());
  const uint32_t limit = peer.setting(kMaxConcurrentStreams);
  ASSERT_GT(limit, 64U);
  ASSERT_LT(limit, 200U);
  const uint32_t last = 1 + 2 * (limit - 1);
  Run(peer, {{Calls(limit) + Ping(), Pong()}, {Message(last), Served(last)}});
}

// 5.1.2: the error is one of the stream that is too many, or of the connection.
TEST_F(Http2Test, MoreStreamsThanItSays) {
  Peer peer(port());
  Run(peer, Handshake());
  const uint32_t limit = peer.setting(kMaxConcurrentStreams);
  Run(peer, {{Calls(limit + 1),
              StreamError({kProtocolError, kRefusedStream}, 1 + 2 * limit)}});
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat("S",
                      absl::StrReplaceAll(info.param.section, {{".", "_"}}),
                      "_", info.param.name);
}

INSTANTIATE_TEST_SUITE_P(Generic, Http2Test, testing::ValuesIn(GenericCases()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Framing, Http2Test, testing::ValuesIn(FramingCases()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Frames, Http2Test, testing::ValuesIn(FrameCases()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Messages, Http2Test, testing::ValuesIn(MessageCases()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Hpack, Http2Test, testing::ValuesIn(HpackCases()),
                         NameOf);

}  // namespace
}  // namespace recurve::http2
