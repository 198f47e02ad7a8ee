// Clients of a stream that read slowly, and such that do not read.

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "tests/e2e/http_fixture.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{1'000};
// The client system's buffer, whose contents count as read.
constexpr int kReceiveBuffer = 4096;

ServerOptions Impatient() {
  ServerOptions options = DemoOptions();
  options.engine.stalled_client_timeout = kTimeout;
  options.max_buffered_tokens = 64;
  return options;
}

// Far more than all buffers on the way hold.
std::string LongStream() {
  const json body = {{"prompt", "a"},      {"max_tokens", 1500},
                     {"ignore_eos", true}, {"stream", true},
                     {"logprobs", 20},     {"seed", 1}};
  return PostText(kCompletionsPath, body.dump());
}

// The server's socket takes more only when a third of its buffer is free, and
// the engine gets on only when a whole piece is out: this client needs longer
// for either than the server waits for one that does not read.
TEST(HttpReaderTest, WhoReadsSlowlyIsNotCutOff) {
  TestServer server(Impatient());
  HttpConnection connection(server.server().http_port(), nullptr,
                            kReceiveBuffer);
  ASSERT_TRUE(connection.Send(LongStream()));
  std::string text;
  const auto end = std::chrono::steady_clock::now() + 5 * kTimeout;
  while (std::chrono::steady_clock::now() < end) {
    const std::string some = connection.ReadSome(512);
    ASSERT_NE(some, "") << "cut off after " << text.size() << " bytes";
    text += some;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  for (std::string more = "x";
       !more.empty() && !absl::EndsWith(text, "\r\n0\r\n\r\n");) {
    text += more = connection.ReadSome();
  }
  EXPECT_THAT(text, HasSubstr("data: [DONE]"));
  server.ExpectIdle();
}

TEST(HttpReaderTest, WhoDoesNotReadIsCutOffAndCountedSo) {
  TestServer server(Impatient());
  const int port = server.server().http_port();
  const auto failures = [&](const std::string& status) {
    return MetricValue(
        port, "recurve_request_failure_total{status=\"" + status + "\"}");
  };
  HttpConnection connection(port, nullptr, kReceiveBuffer);
  ASSERT_TRUE(connection.Send(LongStream()));
  EXPECT_TRUE(WaitFor([&] { return failures("RESOURCE_EXHAUSTED") == 1; }))
      << "cancelled: " << failures("CANCELLED");
  EXPECT_EQ(failures("CANCELLED"), -1);
  server.ExpectIdle();
  // A client that leaves is another matter.
  {
    HttpConnection leaving(port);
    ASSERT_TRUE(leaving.Send(LongStream()));
    EXPECT_NE(leaving.ReadSome(), "");
  }
  EXPECT_TRUE(WaitFor([&] { return failures("CANCELLED") == 1; }));
  EXPECT_EQ(failures("RESOURCE_EXHAUSTED"), 1);
}

// Also where many tokens may wait.
TEST(HttpReaderTest, LogprobsThatNobodyReadsPauseAStreamByTheirBytes) {
  constexpr int kTokens = 3000;  // some 200 bytes each until they are sent
  ServerOptions options = DemoOptions();
  options.max_buffered_tokens = int64_t{1} << 40;
  options.max_buffered_bytes = 65536;
  options.engine.stalled_client_timeout = std::chrono::minutes(10);
  TestServer server(options);
  {
    HttpConnection connection(server.server().http_port(), nullptr,
                              kReceiveBuffer);
    const json body = {{"prompt", "a"},
                       {"max_tokens", kTokens},
                       {"ignore_eos", true},
                       {"stream", true},
                       {"logprobs", 20}};
    ASSERT_TRUE(connection.Send(PostText(kCompletionsPath, body.dump())));
    // Until it pauses, or is done.
    int64_t generated = 0;
    ASSERT_TRUE(WaitFor(
        [&] {
          const int64_t before = std::exchange(
              generated,
              server.server().engine().load().generation_tokens_total);
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          return generated > 0 && generated == before;
        },
        120));
    EXPECT_LT(generated, kTokens);
  }
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
