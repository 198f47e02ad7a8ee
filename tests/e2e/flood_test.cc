// Floods over gRPC connections without a key, one kind after the other, over
// plaintext and TLS, from one connection and from eight, against a server
// process: it lives, its memory stays where it was, and a client with a key is
// served meanwhile.
//
// RECURVE_FLOOD_SECONDS says how long each lasts (default: 0.4). From 10
// seconds on, the times of the client with a key are judged, too: they say
// nothing on a machine that does other work.

#include <openssl/ssl.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http2.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process.h"
#include "tests/testing/program_paths.h"

namespace recurve {
namespace {

using http2::BigEndian;
using http2::CallHeaders;
using http2::Frame;
using http2::Header;
using http2::Preface;
using Clock = std::chrono::steady_clock;

enum FrameType {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr int kEndStream = 1;
constexpr int kEndHeaders = 4;

std::string Call(uint32_t stream, const std::string& method, int flags = 0) {
  return Frame(kHeaders, kEndHeaders | flags, stream, CallHeaders(method));
}
const char* const kGenerate = "/recurve.v1.Inference/Generate";
const char* const kWatch = "/grpc.health.v1.Health/Watch";
// HealthCheckRequest{}, with the prefix of a message.
const std::string& EmptyMessage() {
  static const auto& bytes = *new std::string(5, '\0');
  return bytes;
}
std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// What one connection of a flood sends: `Next` again and again, until it is
// over or the server ends it.
class Flood {
 public:
  explicit Flood(std::function<std::string(uint32_t*)> next)
      : next_(std::move(next)) {}
  std::string Next() { return next_(&stream_); }

 private:
  const std::function<std::string(uint32_t*)> next_;
  uint32_t stream_ = 1;  // the next one that the client may open
};

struct Kind {
  const char* name;
  std::string first;  // after the preface
  std::function<std::string(uint32_t*)> next;
};

// The same bytes each time.
std::function<std::string(uint32_t*)> Same(std::string bytes) {
  return [bytes = std::move(bytes)](uint32_t*) { return bytes; };
}
// `make`, of a new stream, 200 times.
std::function<std::string(uint32_t*)> OfStreams(
    std::function<std::string(uint32_t)> make) {
  return [make = std::move(make)](uint32_t* stream) {
    std::string bytes;
    for (int i = 0; i < 200; ++i, *stream += 2) bytes += make(*stream);
    return bytes;
  };
}

std::vector<Kind> Kinds() {
  const std::string setting = BigEndian(4, 2) + BigEndian(65535, 4);
  const std::string cancel = BigEndian(8, 4);
  std::string many_headers;
  for (int i = 0; i < 500; ++i) many_headers += Header("x-header", "value");
  // 2^30 bytes, as HPACK writes the length of a literal.
  const std::string announced =
      std::string("\0\x01x\x7f\x81\xff\xff\xff\x03", 9) +
      std::string(1000, 'x');
  return {
      {"settings", "", Same(Repeat(Frame(kSettings, 0, 0, setting), 1000))},
      {"settings_empty", "", Same(Repeat(Frame(kSettings, 0, 0, ""), 1000))},
      {"settings_many", "",
       Same(Repeat(Frame(kSettings, 0, 0, Repeat(setting, 32)), 50))},
      {"ping", "", Same(Repeat(Frame(kPing, 0, 0, "12345678"), 1000))},
      {"ping_ack", "", Same(Repeat(Frame(kPing, 1, 0, "12345678"), 1000))},
      {"window_update", "",
       Same(Repeat(Frame(kWindowUpdate, 0, 0, BigEndian(1, 4)), 1000))},
      {"priority", "",
       [](uint32_t* stream) {
         std::string bytes;
         for (int i = 0; i < 1000; ++i, *stream += 2) {
           bytes += Frame(kPriority, 0, *stream, BigEndian(0, 4) + "\x10");
         }
         return bytes;
       }},
      {"unknown_frames", "", Same(Repeat(Frame(0x55, 0, 0, "x"), 1000))},
      {"rapid_reset", "", OfStreams([cancel](uint32_t s) {
         return Call(s, kGenerate) + Frame(kReset, 0, s, cancel);
       })},
      {"rapid_reset_health", "", OfStreams([cancel](uint32_t s) {
         return Call(s, kWatch) + Frame(kReset, 0, s, cancel);
       })},
      {"reset_closed", Call(1, kGenerate, kEndStream),
       Same(Repeat(Frame(kReset, 0, 1, cancel), 1000))},
      {"calls_without_key", "",
       OfStreams([](uint32_t s) { return Call(s, kGenerate, kEndStream); })},
      {"calls_unknown", "",
       OfStreams([](uint32_t s) { return Call(s, "/a/b", kEndStream); })},
      {"calls_watch", "", OfStreams([](uint32_t s) {
         return Call(s, kWatch) + Frame(kData, kEndStream, s, EmptyMessage());
       })},
      {"calls_half_open", "",
       OfStreams([](uint32_t s) { return Call(s, kGenerate); })},
      {"headers_empty", "", OfStreams([](uint32_t s) {
         return Frame(kHeaders, kEndHeaders, s, "");
       })},
      {"headers_huge", "", OfStreams([](uint32_t s) {
         return Frame(kHeaders, 0, s, CallHeaders(kGenerate)) +
                Frame(kContinuation, kEndHeaders, s,
                      Repeat(Header("x", std::string(120, 'x')), 120));
       })},
      {"headers_many", "", OfStreams([many_headers](uint32_t s) {
         return Frame(kHeaders, kEndHeaders, s,
                      CallHeaders(kGenerate) + many_headers);
       })},
      {"continuation", Frame(kHeaders, 0, 1, CallHeaders(kGenerate)),
       Same(Repeat(Frame(kContinuation, 0, 1,
                         Repeat(Header("x", std::string(120, 'x')), 25)),
                   100))},
      {"continuation_empty", Frame(kHeaders, 0, 1, CallHeaders(kGenerate)),
       Same(Repeat(Frame(kContinuation, 0, 1, ""), 1000))},
      {"header_announced", Frame(kHeaders, 0, 1, announced),
       Same(Repeat(Frame(kContinuation, 0, 1, std::string(16000, 'x')), 10))},
      {"data_empty", Call(1, kWatch),
       Same(Repeat(Frame(kData, 0, 1, ""), 1000))},
      {"data_of_a_byte", Call(1, kWatch),
       Same(Repeat(Frame(kData, 0, 1, "x"), 1000))},
      {"data_without_key", Call(1, kGenerate),
       Same(Repeat(Frame(kData, 0, 1, std::string(16384, 'x')), 10))},
      {"messages_half_sent", "", OfStreams([](uint32_t s) {
         return Call(s, kWatch) +
                Frame(kData, 0, s,
                      std::string("\0\0\x10\0\0", 5) + std::string(100, 'x'));
       })},
      {"window_zero", Frame(kSettings, 0, 0, BigEndian(4, 2) + BigEndian(0, 4)),
       OfStreams([](uint32_t s) {
         return Call(s, kWatch) + Frame(kData, kEndStream, s, EmptyMessage());
       })},
      {"garbage", "", Same(std::string(100'000, '\xaa'))},
      {"connects", "", nullptr},
  };
}

double Percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part *
                                    static_cast<double>(values.size() - 1))];
}

class FloodTest : public testing::TestWithParam<bool> {
 protected:
  FloodTest() {
    std::string name = testing::TempDir() + "recurve_flood_XXXXXX";
    folder_ = mkdtemp(name.data());
    Write("keys", KeyLine("good", "right"));
    Write("ca.pem", authority_.certificate());
    const PemPair pair = authority_.Sign("server");
    std::vector<std::string> command = {
        (RECURVE_BINARY_DIR "/bin/recurve-server"),
        "--model",
        (RECURVE_SOURCE_DIR "/deploy/models/demo"),
        "--device",
        "cpu",
        "--num-threads",
        "1",
        "--kv-pages",
        "256",
        "--grpc-port",
        "0",
        "--http-port",
        "-1",
        "--metrics-port",
        "0",
        "--api-keys-file",
        folder_ + "/keys"};
    if (GetParam()) {
      for (const std::string& word :
           {std::string("--tls-cert"), Write("server.pem", pair.certificate),
            std::string("--tls-key"), Write("server.key", pair.key)}) {
        command.push_back(word);
      }
      tls_.reset(SSL_CTX_new(TLS_client_method()));
    }
    // AddressSanitizer keeps freed memory back, which would look like a leak.
    const char* asan = std::getenv("ASAN_OPTIONS");
    server_ = std::make_unique<Process>(
        command, std::vector<std::string>{absl::StrCat(
                     "ASAN_OPTIONS=", asan != nullptr ? asan : "",
                     ":quarantine_size_mb=4:thread_local_quarantine_size_kb="
                     "64:malloc_context_size=2")});
    address_ = server_->GrpcAddress();
    port_ = std::atoi(address_.substr(address_.find(':') + 1).c_str());
    const std::string metrics = server_->Address("metrics");
    metrics_port_ = std::atoi(metrics.substr(metrics.find(':') + 1).c_str());
  }
  ~FloodTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::unique_ptr<RecurveClient> Client() const {
    ClientOptions options;
    options.own_connection = true;
    options.api_key = "right";
    options.tls.enabled = GetParam();
    if (GetParam()) options.tls.ca = folder_ + "/ca.pem";
    return *RecurveClient::Create(address_, options);
  }

  // One connection's part of a flood; it connects again when it is ended.
  void Attack(const Kind& kind, bool reads) {
    while (!over_) {
      HttpConnection connection(port_, tls_.get());
      ++connects_;
      if (!connection.connected() || kind.next == nullptr) continue;
      // A server that reads no more would hold it back.
      const Attacker entry(this, &connection);
      Flood flood(kind.next);
      bool open = connection.Send(Preface() + kind.first);
      while (open && !over_) {
        open = connection.Send(flood.Next());
        if (reads && tls_ == nullptr) connection.Discard();
      }
    }
  }

  // Ends the flood that runs.
  void StopAttacks() {
    over_ = true;
    MutexLock lock(&mu_);
    for (HttpConnection* connection : attacking_) connection->Interrupt();
  }

  // Calls of a client with a key for `seconds`; returns their times in
  // milliseconds.
  std::vector<double> Measure(double seconds) {
    std::vector<double> times;
    const auto client = Client();
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    do {
      const auto begin = Clock::now();
      const auto outcome = Generate(*client, GreedyRequest({256, 97}, 4));
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      if (!outcome.status.ok()) break;
      times.push_back(
          std::chrono::duration<double>(Clock::now() - begin).count() * 1e3);
    } while (Clock::now() < end);
    return times;
  }

  // A connection that StopAttacks interrupts.
  class Attacker {
   public:
    Attacker(FloodTest* test, HttpConnection* connection)
        : test_(test), connection_(connection) {
      MutexLock lock(&test_->mu_);
      test_->attacking_.insert(connection_);
    }
    ~Attacker() {
      MutexLock lock(&test_->mu_);
      test_->attacking_.erase(connection_);
    }

   private:
    FloodTest* const test_;
    HttpConnection* const connection_;
  };

  struct FreeTls {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };

  const TestAuthority authority_;
  std::string folder_;
  std::unique_ptr<SSL_CTX, FreeTls> tls_;
  std::unique_ptr<Process> server_;
  std::string address_;
  int port_ = 0;
  int metrics_port_ = 0;
  std::atomic<bool> over_{false};
  std::atomic<int64_t> connects_{0};
  Mutex mu_;
  std::set<HttpConnection*> attacking_ ABSL_GUARDED_BY(mu_);
};

TEST_P(FloodTest, ServesOthersAndHoldsNothing) {
  signal(SIGPIPE, SIG_IGN);
  const double seconds =
      std::atof(FromEnvironment("RECURVE_FLOOD_SECONDS", "0.4").c_str());
  const std::string only = FromEnvironment("RECURVE_FLOOD_KIND", "");
  const bool judges_times = seconds >= 10;
  constexpr int64_t kMaxGrowth = 200 << 20;
  Measure(0.5);  // all that is made once is there
  const double quiet = Percentile(Measure(judges_times ? seconds : 0.5), 0.99);
  const int64_t before = server_->MemoryBytes();
  std::printf("quiet: p99 %.2f ms, %.1f MiB\n", quiet,
              static_cast<double>(before) / (1 << 20));
  for (const Kind& kind : Kinds()) {
    if (!only.empty() && only != kind.name) continue;
    for (const int connections : {1, 8}) {
      SCOPED_TRACE(absl::StrCat(kind.name, " from ", connections));
      over_ = false;
      connects_ = 0;
      std::vector<std::thread> attackers;
      for (int i = 0; i < connections; ++i) {
        attackers.emplace_back([&, i] { Attack(kind, i % 2 == 0); });
      }
      int64_t most = 0;
      std::atomic<bool> measured = false;
      std::thread watcher([&] {
        while (!measured) {
          most = std::max(most, server_->MemoryBytes());
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      });
      const std::vector<double> times = Measure(seconds);
      measured = true;
      watcher.join();
      StopAttacks();
      for (std::thread& attacker : attackers) attacker.join();
      ASSERT_TRUE(server_->Running()) << server_->Err();
      EXPECT_LT(most - before, kMaxGrowth);
      const double p99 = Percentile(times, 0.99);
      std::printf(
          "%-20s %d: %5zu calls, p99 %6.2f ms (%.2f), +%.1f MiB, "
          "%lld connects\n",
          kind.name, connections, times.size(), p99, p99 / quiet,
          static_cast<double>(most - before) / (1 << 20),
          static_cast<long long>(connects_));
      std::fflush(stdout);
      // A client that only connects and leaves occupies a core itself.
      if (judges_times && kind.next != nullptr) {
        EXPECT_LT(p99, 2 * quiet);
      }
    }
  }
  EXPECT_TRUE(WaitFor([&] {
    return MetricValue(metrics_port_,
                       "recurve_grpc_connections{state=\"used\"}") == 0;
  }));
  EXPECT_LT(server_->MemoryBytes() - before, kMaxGrowth / 4);
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 0) << server_->Err();
}

INSTANTIATE_TEST_SUITE_P(Transports, FloodTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Tls" : "Plain";
                         });

}  // namespace
}  // namespace recurve
