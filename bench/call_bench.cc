// Small unary calls against a running server: how many a second it answers, and
// how long one takes.
//
//     recurve-call-bench --server 127.0.0.1:50051 --connections 8 --calls 8
//     recurve-call-bench --server 127.0.0.1:50051 --rate 10000
//     recurve-call-bench --floor
//
// Calls GetServerInfo: what is measured is the transport. Closed loop without
// --rate. --floor: no gRPC, but the same closed loop of one call, of 64 bytes
// there and back between two threads of this process over TCP on loopback,
// which is the least that a call can take here.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/mutex.h"

namespace recurve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kMethod[] = "/recurve.v1.Control/GetServerInfo";

double Microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

int Report(std::vector<double> times, int64_t failed, double seconds) {
  if (times.empty()) {
    std::fprintf(stderr, "recurve-call-bench: no call succeeded\n");
    return EXIT_FAILURE;
  }
  std::sort(times.begin(), times.end());
  const auto percentile = [&](size_t p) {
    return times[std::min(times.size() - 1, times.size() * p / 100)];
  };
  std::printf("%.0f calls/s, p50 %.0f us, p99 %.0f us, %lld failed\n",
              static_cast<double>(times.size()) / seconds, percentile(50),
              percentile(99), static_cast<long long>(failed));
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// What all callers share. Thread-safe.
class Record {
 public:
  void Add(bool ok, Clock::duration time) {
    MutexLock lock(&mu_);
    if (ok) {
      times_.push_back(Microseconds(time));
    } else {
      ++failed_;
    }
  }
  void Begin() { ++open_; }
  void End() { --open_; }
  bool idle() const { return open_.load() == 0; }
  std::vector<double> Take(int64_t* failed) {
    MutexLock lock(&mu_);
    *failed = failed_;
    return std::move(times_);
  }
  std::atomic<bool> stop{false};

 private:
  std::atomic<int64_t> open_{0};
  Mutex mu_;
  std::vector<double> times_ ABSL_GUARDED_BY(mu_);  // microseconds
  int64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
};

// One call at a time.
class Caller {
 public:
  Caller(grpc::GenericStub* stub, Record* record, bool loops)
      : stub_(stub), record_(record), loops_(loops) {}

  bool free() const { return free_.load(); }

  void Call() {
    free_ = false;
    record_->Begin();
    context_ = std::make_unique<grpc::ClientContext>();
    const grpc::Slice nothing;
    request_ = grpc::ByteBuffer(&nothing, 1);
    began_ = Clock::now();
    stub_->UnaryCall(context_.get(), kMethod, grpc::StubOptions(), &request_,
                     &response_, [this](const grpc::Status& status) {
                       record_->Add(status.ok(), Clock::now() - began_);
                       if (loops_ && !record_->stop.load()) Call();
                       record_->End();
                       if (!loops_) free_ = true;
                     });
  }

 private:
  grpc::GenericStub* const stub_;
  Record* const record_;
  const bool loops_;
  std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  Clock::time_point began_;
  std::atomic<bool> free_{true};
};

struct Flags {
  std::string server = "127.0.0.1:50051";
  int connections = 8;
  int calls = 8;  // at a time, of one connection
  double seconds = 5;
  double rate = 0;
  bool floor = false;
};

int Run(const Flags& flags) {
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  std::vector<std::unique_ptr<Caller>> callers;
  Record record;
  for (int i = 0; i < flags.connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const auto channel = grpc::CreateCustomChannel(
        flags.server, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() +
                                   std::chrono::seconds(10))) {
      std::fprintf(stderr, "recurve-call-bench: no connection to %s\n",
                   flags.server.c_str());
      return EXIT_FAILURE;
    }
    stubs.push_back(std::make_unique<grpc::GenericStub>(channel));
    for (int call = 0; call < flags.calls; ++call) {
      callers.push_back(std::make_unique<Caller>(stubs.back().get(), &record,
                                                 flags.rate == 0));
    }
  }
  const Clock::time_point began = Clock::now();
  const auto elapsed = [&] {
    return Microseconds(Clock::now() - began) * 1e-6;
  };
  if (flags.rate == 0) {
    for (const auto& caller : callers) caller->Call();
    std::this_thread::sleep_for(std::chrono::duration<double>(flags.seconds));
  }
  // At a rate: what is due when no caller is free is called late.
  for (int64_t sent = 0; flags.rate > 0 && elapsed() < flags.seconds;) {
    const auto due = static_cast<int64_t>(elapsed() * flags.rate);
    for (const auto& caller : callers) {
      if (sent >= due) break;
      if (!caller->free()) continue;
      caller->Call();
      ++sent;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  record.stop = true;
  const double seconds = elapsed();
  while (!record.idle()) std::this_thread::yield();
  int64_t failed = 0;
  std::vector<double> times = record.Take(&failed);
  return Report(std::move(times), failed, seconds);
}

int RunFloor(const Flags& flags) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, any, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, any, &size) != 0 ||
      connect(client, any, size) != 0) {
    std::perror("recurve-call-bench");
    return EXIT_FAILURE;
  }
  const int server = accept(listener, nullptr, nullptr);
  const int on = 1;
  for (const int fd : {client, server}) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  std::thread echo([server] {
    char bytes[64];
    while (true) {
      const ssize_t got = read(server, bytes, sizeof(bytes));
      if (got <= 0 || write(server, bytes, static_cast<size_t>(got)) != got) {
        break;
      }
    }
  });
  std::vector<double> times;
  char bytes[64] = {};
  const Clock::time_point began = Clock::now();
  const auto end = began + std::chrono::duration<double>(flags.seconds);
  while (Clock::now() < end) {
    const Clock::time_point sent = Clock::now();
    if (write(client, bytes, sizeof(bytes)) != sizeof(bytes) ||
        recv(client, bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes)) {
      break;
    }
    times.push_back(Microseconds(Clock::now() - sent));
  }
  const double seconds = Microseconds(Clock::now() - began) * 1e-6;
  shutdown(client, SHUT_RDWR);
  echo.join();
  for (const int fd : {client, server, listener}) close(fd);
  return Report(std::move(times), 0, seconds);
}

}  // namespace
}  // namespace recurve

// What CLI11 throws ends the program.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  recurve::Flags flags;
  CLI::App app("Measure small gRPC calls", "recurve-call-bench");
  app.add_option("--server", flags.server, "HOST:PORT, plaintext")
      ->capture_default_str();
  app.add_option("--connections", flags.connections, "Connections")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--calls", flags.calls, "Calls at a time of a connection")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "How long")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--rate", flags.rate, "Calls a second; 0: a closed loop")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_flag("--floor", flags.floor, "TCP alone, without a server");
  CLI11_PARSE(app, argc, argv);
  return flags.floor ? recurve::RunFloor(flags) : recurve::Run(flags);
}
