#include "server/transport/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace recurve {
namespace {

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

bool IsWildcard(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr ==
           htonl(INADDR_ANY);
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return 0;
  }
  return ntohs(address.ss_family == AF_INET
                   ? reinterpret_cast<sockaddr_in&>(address).sin_port
                   : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

}  // namespace

std::string HostPort(const std::string& host, int port) {
  const bool bare_ipv6 =
      host.find(':') != std::string::npos && host.front() != '[';
  return bare_ipv6 ? absl::StrCat("[", host, "]:", port)
                   : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListeningSockets> ListeningSockets::Open(absl::string_view what,
                                                        const std::string& host,
                                                        int port) {
  const auto unavailable = [&](absl::string_view reason) {
    return absl::UnavailableError(absl::StrCat("cannot listen for ", what,
                                               " on ", HostPort(host, port),
                                               ": ", reason));
  };
  std::string name = host;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(name.c_str(), absl::StrCat(port).c_str(), &hints, &found);
      error != 0) {
    return unavailable(error == EAI_SYSTEM ? std::strerror(errno)
                                           : gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(
      found, freeaddrinfo);
  // A port that is free on one address may be in use on another: try the next.
  constexpr int kTries = 20;
  for (int i = 0;; ++i) {
    ListeningSockets open(port);
    const int problem = open.ListenOnEach(*addresses);
    if (problem == 0) return open;
    if (problem != EADDRINUSE || port != 0 || i + 1 == kTries) {
      return unavailable(std::strerror(problem));
    }
  }
}

int ListeningSockets::ListenOnEach(const addrinfo& addresses) {
  int problem = 0;
  std::vector<std::string> seen;  // resolvers may return duplicates
  for (const addrinfo* a = &addresses; a != nullptr; a = a->ai_next) {
    std::string bytes(reinterpret_cast<const char*>(a->ai_addr), a->ai_addrlen);
    if (std::find(seen.begin(), seen.end(), bytes) != seen.end()) continue;
    seen.push_back(std::move(bytes));
    int result = 0;
    if (IsWildcard(*a->ai_addr)) {
      result = ListenOnAll();
      if (result == 0) return 0;
    }
    // Fall back to IPv4 without IPv6.
    if (result != EADDRINUSE) {
      result = ListenOn(a->ai_addr, a->ai_addrlen, a->ai_protocol);
    }
    // In use by another server: a client would reach either.
    if (result == EADDRINUSE) return result;
    if (problem == 0) problem = result;
  }
  // A name may have addresses that are unusable on this machine, such as the
  // IPv6 one of "localhost" without IPv6: one usable address is enough.
  return sockets_.empty() ? problem : 0;
}

int ListeningSockets::ListenOn(const sockaddr* address, socklen_t length,
                               int protocol) {
  const int fd = socket(address->sa_family,
                        SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
  if (fd < 0) return errno;
  sockaddr_storage with_port = {};
  std::memcpy(&with_port, address, length);
  const in_port_t port = htons(static_cast<in_port_t>(port_));
  if (address->sa_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&with_port)->sin_port = port;
  } else {
    auto* const six = reinterpret_cast<sockaddr_in6*>(&with_port);
    six->sin6_port = port;
    // The other family is bound separately, except for mapped addresses.
    if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
      SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  return Bind(fd, reinterpret_cast<sockaddr*>(&with_port), length);
}

int ListeningSockets::ListenOnAll() {
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

int ListeningSockets::Bind(int fd, const sockaddr* address, socklen_t length) {
  // For connections that linger after an earlier process; two servers never
  // share a port.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd, address, length) != 0 || listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    return error;
  }
  sockets_.push_back({fd, address->sa_family});
  port_ = PortOf(fd);
  return 0;
}

void ListeningSockets::Close() {
  for (const Socket& socket : sockets_) close(socket.fd);
  sockets_.clear();
}

}  // namespace recurve
