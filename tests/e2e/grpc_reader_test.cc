// Clients of a gRPC stream that read slowly, and such that do not read. By
// hand: a library takes off the connection what its caller has not asked for
// yet.

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/e2e/server_fixture.h"
#include "tests/testing/http2.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

constexpr int kData = 0;
constexpr int kHeaders = 1;
constexpr int kReset = 3;
constexpr int kSettings = 4;
constexpr int kPing = 6;
constexpr int kGoAway = 7;
constexpr int kWindowUpdate = 8;
constexpr int kEndStream = 1;  // of kData and kHeaders
constexpr int kAck = 1;        // of kSettings and kPing

// One call, which lets the server send no more than it has granted: 65,535
// bytes at first.
class GrantingCall {
 public:
  GrantingCall(int port, const std::string& method,
               const google::protobuf::MessageLite& request)
      : connection_(port) {
    const std::string message = request.SerializeAsString();
    const std::string head =
        http2::Preface() +
        http2::OpenStream(1, "/recurve.v1.Inference/" + method);
    const std::string body =
        std::string(1, '\0') +
        http2::BigEndian(static_cast<uint32_t>(message.size()), 4) + message;
    EXPECT_LE(body.size(), 16384);  // one frame takes no more
    connection_.Send(head + http2::Frame(kData, kEndStream, 1, body));
  }

  // Reads until what is granted is used up; false: the call has ended.
  bool Read() {
    while (granted_ > 0) {
      while (frames_.size() < 9 || frames_.size() < 9 + Length()) {
        const std::string some = connection_.ReadSome();
        if (some.empty()) return false;
        frames_ += some;
      }
      const int type = static_cast<uint8_t>(frames_[3]);
      const int flags = static_cast<uint8_t>(frames_[4]);
      const std::string payload = frames_.substr(9, Length());
      frames_.erase(0, 9 + Length());
      if (type == kData) {
        data_ += payload;
        granted_ -= static_cast<int64_t>(payload.size());
      }
      if ((type == kSettings || type == kPing) && (flags & kAck) == 0) {
        connection_.Send(
            http2::Frame(type, kAck, 0, type == kPing ? payload : ""));
      }
      if (type == kReset || type == kGoAway ||
          (type == kHeaders && (flags & kEndStream) != 0)) {
        return false;
      }
    }
    return true;
  }

  void Grant(uint32_t bytes) {
    granted_ += bytes;
    for (const uint32_t stream : {0, 1}) {
      connection_.Send(
          http2::Frame(kWindowUpdate, 0, stream, http2::BigEndian(bytes, 4)));
    }
  }

  // The messages that have arrived.
  template <typename Message>
  std::vector<Message> Messages() const {
    std::vector<Message> messages;
    for (size_t at = 0; at + 5 <= data_.size();) {
      const size_t size = Number(data_, at + 1, 4);
      if (at + 5 + size > data_.size()) break;
      EXPECT_TRUE(
          messages.emplace_back().ParseFromString(data_.substr(at + 5, size)));
      at += 5 + size;
    }
    return messages;
  }

 private:
  static size_t Number(const std::string& text, size_t at, int bytes) {
    size_t number = 0;
    for (int i = 0; i < bytes; ++i) {
      number = number << 8 | static_cast<unsigned char>(text[at + i]);
    }
    return number;
  }
  size_t Length() const { return Number(frames_, 0, 3); }

  HttpConnection connection_;
  std::string frames_;  // not looked at yet
  std::string data_;
  int64_t granted_ = 65535;
};

v1::DecodeRequest AllRows(int64_t tokens) {
  v1::DecodeRequest request;
  for (const uint32_t id : RandomPrompt(7, tokens)) {
    request.mutable_append_ids()->add_ids(id);
  }
  request.set_logits(v1::LOGITS_MODE_ALL);
  return request;
}

constexpr std::chrono::seconds kTimeout{2};

ServerOptions Impatient() {
  ServerOptions options = DemoOptions();
  options.engine.stalled_client_timeout = kTimeout;
  return options;
}

// Reads to the end at 200 KB/s, a fraction of kTimeout for the longest message.
// Returns how many rows came, in order, and whether `done` did, last.
std::pair<int, bool> ReadRowsSlowly(GrantingCall& call) {
  constexpr uint32_t kGrant = 16384;
  constexpr std::chrono::milliseconds kPause{80};
  while (call.Read()) {
    std::this_thread::sleep_for(kPause);
    call.Grant(kGrant);
  }
  int rows = 0;
  bool done = false;
  for (const auto& response : call.Messages<v1::DecodeResponse>()) {
    EXPECT_LE(response.ByteSizeLong(), 64 << 10);
    for (const v1::Logits& row : response.logits()) {
      EXPECT_EQ(row.position(), rows++);
      EXPECT_EQ(row.values_size(), 258);
    }
    EXPECT_FALSE(done);
    done = response.done();
  }
  return {rows, done};
}

// It needs longer than kTimeout for what pauses the sequence, and again for
// what is left when the command is done.
TEST(GrpcReaderTest, WhoReadsSlowlyGetsAllRowsInMessagesThatAreNotLong) {
  constexpr int kRows = 1600;  // of 1 KB
  TestServer server(Impatient());
  GrantingCall call(server.server().grpc_port(), "Decode", AllRows(kRows));
  const auto [rows, done] = ReadRowsSlowly(call);
  EXPECT_EQ(rows, kRows) << "cut off";
  EXPECT_TRUE(done);
  server.ExpectIdle();
}

TEST(GrpcReaderTest, WhoReadsSlowlyGetsWhatWasThereWhenTheSequenceEnded) {
  constexpr int kRows = 900;  // for 4 seconds
  constexpr int kSteps = 2;   // of up to 512 rows
  TestServer server(Impatient());
  std::atomic<int> steps = 0;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    ++steps;
    return absl::OkStatus();
  });
  GrantingCall call(server.server().grpc_port(), "Decode", AllRows(kRows));
  ASSERT_TRUE(WaitFor([&] { return steps == kSteps; }));
  // It acts when the step is done.
  server.server().engine().CancelAll(absl::UnavailableError("by the test"));
  const auto [rows, done] = ReadRowsSlowly(call);
  EXPECT_EQ(rows, kRows) << "cut off";
  EXPECT_TRUE(done);
  server.ExpectIdle();
}

// Also where many tokens may wait.
TEST(GrpcReaderTest, LogprobsThatNobodyReadsPauseAStreamByTheirBytes) {
  constexpr uint32_t kTokens = 3000;  // some 200 bytes each
  ServerOptions options = DemoOptions();
  options.max_buffered_tokens = int64_t{1} << 40;
  options.max_buffered_bytes = 65536;
  options.engine.stalled_client_timeout = std::chrono::milliseconds(300);
  TestServer server(options);
  v1::GenerateRequest request = GreedyRequest({256}, kTokens);
  request.set_logprobs(20);
  GrantingCall call(server.server().grpc_port(), "Generate", request);
  EngineLoad load;
  ASSERT_TRUE(WaitFor(
      [&] {
        load = server.server().engine().load();
        return load.generation_tokens_total > 0 && load.open == 0;
      },
      120));
  EXPECT_LT(load.generation_tokens_total, kTokens);
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
