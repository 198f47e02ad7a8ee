#include "server/grpc_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "grpcpp/server_builder.h"
#include "server/metrics.h"
#include "server/transport.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

// When no more files can be opened, the next try to accept.
constexpr int kAcceptPauseMs = 100;
// At the limit of connections, how often it is looked whether some are gone.
constexpr std::chrono::milliseconds kLookInterval{10};
// How often they are counted for the metric; less often where counting takes
// more than one part of so many of the thread's time.
constexpr std::chrono::milliseconds kCountInterval{1000};
constexpr int kCountShare = 100;
// Connections that are accepted before others, and the end, have their turn.
constexpr int kAcceptsATurn = 16;
// The log is not filled by what anybody may do as often as he likes.
constexpr std::chrono::seconds kWarnInterval{60};

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

// Nothing for a descriptor that is not open.
std::optional<std::pair<dev_t, ino_t>> FileOf(int fd) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return std::nullopt;
  return std::make_pair(file.st_dev, file.st_ino);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Listen(
    const GrpcListenerOptions& options) {
  RECURVE_ASSIGN_OR_RETURN(
      ListeningSockets sockets,
      ListeningSockets::Open("gRPC", options.host, options.port));
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for gRPC: ", std::strerror(errno)));
  }
  return std::unique_ptr<GrpcListener>(
      new GrpcListener(options, std::move(sockets), stop_fd));
}

absl::Status GrpcListener::Start(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  RECURVE_ASSIGN_OR_RETURN(thread_,
                           StartThread("gRPC connections", [this] { Loop(); }));
  return absl::OkStatus();
}

void GrpcListener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // Cannot fail: nobody else writes to it.
    if (write(stop_fd_, &one, sizeof(one)) < 0) return;
    thread_.join();
  }
  sockets_.Close();
  acceptor_.reset();
}

GrpcListener::~GrpcListener() {
  Stop();
  close(stop_fd_);
}

void GrpcListener::Loop() {
  std::vector<pollfd> waiting = {{stop_fd_, POLLIN, 0}};
  for (const ListeningSockets::Socket& socket : sockets_.sockets()) {
    waiting.push_back({socket.fd, POLLIN, 0});
  }
  while (true) {
    const int ready = poll(waiting.data(), waiting.size(), WaitMs());
    if (waiting[0].revents != 0) return;
    bool full = ready < 0 && errno != EINTR;
    if (WaitMs() == 0) ForgetClosed();
    for (size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) full |= !AcceptSome(waiting[i].fd);
    }
    if (full) poll(waiting.data(), 1, kAcceptPauseMs);
  }
}

bool GrpcListener::AcceptSome(int listening_fd) {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    const int fd =
        accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Take(listening_fd, fd);
      continue;
    }
    if (errno == EAGAIN) return true;
    // Of one connection, which is gone already.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    WarnOfFiles(errno);
    return false;
  }
  return true;
}

void GrpcListener::Take(int listening_fd, int fd) {
  connections_.erase(fd);  // of one that is gone
  const auto file = FileOf(fd);
  if (!file || !HasRoom()) {
    WarnOfConnections();
    if (options_.metrics != nullptr) options_.metrics->OnGrpcRefused();
    close(fd);
    return;
  }
  if (connections_.empty()) next_count_ = Clock::now() + kCountInterval;
  connections_.emplace(fd, *file);
  TellCount();
  // As gRPC sets its own.
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(kKeepaliveTimeout.count()));
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
      connection;
  connection.listener_fd = listening_fd;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

bool GrpcListener::HasRoom() {
  const auto max = static_cast<size_t>(options_.max_connections);
  if (connections_.size() < max) return true;
  // gRPC closes a connection a little after its peer has; and looking at all of
  // them takes its time, which others who connect must not have all of.
  for (int i = 0; i < 2; ++i) {
    std::this_thread::sleep_until(next_look_);
    next_look_ = Clock::now() + kLookInterval;
    ForgetClosed();
    if (connections_.size() < max) return true;
  }
  return false;
}

void GrpcListener::ForgetClosed() {
  const Clock::time_point begin = Clock::now();
  for (auto it = connections_.begin(); it != connections_.end();) {
    it = FileOf(it->first) == it->second ? std::next(it)
                                         : connections_.erase(it);
  }
  TellCount();
  const Clock::time_point end = Clock::now();
  next_count_ = end + std::max<Clock::duration>(kCountInterval,
                                                kCountShare * (end - begin));
}

void GrpcListener::TellCount() {
  if (options_.metrics == nullptr) return;
  options_.metrics->SetGrpcConnections(
      static_cast<int64_t>(connections_.size()));
}

int GrpcListener::WaitMs() const {
  if (connections_.empty() || options_.metrics == nullptr) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(next_count_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void GrpcListener::WarnOfFiles(int error) {
  const Clock::time_point now = Clock::now();
  if (now < next_files_warning_) return;
  next_files_warning_ = now + kWarnInterval;
  spdlog::warn(
      "gRPC connections have to wait: they cannot be accepted ({}); trying "
      "again every {} ms",
      std::strerror(error), kAcceptPauseMs);
}

void GrpcListener::WarnOfConnections() {
  const Clock::time_point now = Clock::now();
  if (now < next_connections_warning_) return;
  next_connections_warning_ = now + kWarnInterval;
  spdlog::warn(
      "gRPC connections are closed: there are {} already, as many as "
      "--max-grpc-connections allows",
      connections_.size());
}

}  // namespace recurve
