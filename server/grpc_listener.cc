#include "server/grpc_listener.h"

#include <netdb.h>
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

#include "base/status_macros.h"
#include "grpcpp/server_builder.h"
#include "server/listen_check.h"
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

bool IsWildcard(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address.ai_addr)
               ->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(
      &reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
}

// The port of a socket that is bound, or 0.
int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return 0;
  }
  return ntohs(address.ss_family == AF_INET
                   ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                   : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
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
  const auto unavailable = [&](int error) {
    return CannotListen("gRPC", options.host, options.port,
                        std::strerror(error));
  };
  auto listener = std::unique_ptr<GrpcListener>(new GrpcListener(options));
  listener->port_ = options.port;
  listener->stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->stop_fd_ < 0) return unavailable(errno);
  RECURVE_ASSIGN_OR_RETURN(
      const ListenAddresses addresses,
      ResolveListenAddresses("gRPC", options.host, options.port));
  int problem = 0;
  std::vector<std::string> seen;  // resolvers may give an address twice
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    std::string bytes(reinterpret_cast<const char*>(a->ai_addr), a->ai_addrlen);
    if (std::find(seen.begin(), seen.end(), bytes) != seen.end()) continue;
    seen.push_back(std::move(bytes));
    if (IsWildcard(*a) && listener->ListenOnAll() == 0) break;
    const int result = listener->ListenOn(*a);
    // Another server has it: a client would reach either.
    if (result == EADDRINUSE && options.port != 0) return unavailable(result);
    if (problem == 0) problem = result;
  }
  // A name may have addresses that this machine has no use for, as "localhost"
  // has without IPv6: one that can be had is enough.
  if (listener->listening_.empty()) return unavailable(problem);
  return listener;
}

int GrpcListener::ListenOn(const addrinfo& address) {
  const int fd =
      socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
             address.ai_protocol);
  if (fd < 0) return errno;
  sockaddr_storage with_port = {};
  std::memcpy(&with_port, address.ai_addr, address.ai_addrlen);
  const in_port_t port = htons(static_cast<in_port_t>(port_));
  if (address.ai_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&with_port)->sin_port = port;
  } else {
    auto* const six = reinterpret_cast<sockaddr_in6*>(&with_port);
    six->sin6_port = port;
    // The other family has addresses of its own, but for those that are its.
    if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
      SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  return Bind(fd, reinterpret_cast<sockaddr*>(&with_port), address.ai_addrlen);
}

int GrpcListener::ListenOnAll() {
  const int fd =
      socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<in_port_t>(port_));
  address.sin6_addr = in6addr_any;
  return Bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

int GrpcListener::Bind(int fd, const sockaddr* address, unsigned length) {
  // For what lingers of an earlier process; two servers do not share a port.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd, address, length) != 0 || listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    return error;
  }
  listening_.push_back(fd);
  port_ = PortOf(fd);
  return 0;
}

void GrpcListener::Start(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Loop(); });
}

void GrpcListener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // Cannot fail: nobody else writes to it.
    if (write(stop_fd_, &one, sizeof(one)) < 0) return;
    thread_.join();
  }
  for (const int fd : listening_) close(fd);
  listening_.clear();
  acceptor_.reset();
}

GrpcListener::~GrpcListener() {
  Stop();
  if (stop_fd_ >= 0) close(stop_fd_);
}

void GrpcListener::Loop() {
  std::vector<pollfd> waiting = {{stop_fd_, POLLIN, 0}};
  for (const int fd : listening_) waiting.push_back({fd, POLLIN, 0});
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
