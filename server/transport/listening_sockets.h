#ifndef RECURVE_SERVER_TRANSPORT_LISTENING_SOCKETS_H_
#define RECURVE_SERVER_TRANSPORT_LISTENING_SOCKETS_H_

#include <netdb.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// "HOST:PORT", with an IPv6 address in brackets.
std::string HostPort(const std::string& host, int port);

// Sockets that listen on all addresses of a host, the same for every protocol
// of the server: a wildcard ("0.0.0.0", "::") listens on those of both
// families, a name on each address of this machine, which must be free.
//
// Owns the sockets and closes them in its destructor.
class ListeningSockets {
 public:
  struct Socket {
    int fd;
    int family;  // AF_INET or AF_INET6
  };

  // `port` 0 is any free one. Unavailable: "cannot listen for `what` on
  // host:port: reason".
  static absl::StatusOr<ListeningSockets> Open(absl::string_view what,
                                               const std::string& host,
                                               int port);
  ListeningSockets(ListeningSockets&& other) noexcept { Swap(other); }
  ListeningSockets& operator=(ListeningSockets&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~ListeningSockets() { Close(); }

  int port() const { return port_; }
  // Non-blocking.
  const std::vector<Socket>& sockets() const { return sockets_; }
  void Close();

 private:
  explicit ListeningSockets(int port) : port_(port) {}
  void Swap(ListeningSockets& other) noexcept {
    std::swap(port_, other.port_);
    std::swap(sockets_, other.sockets_);
  }
  // These return 0 or errno.
  int ListenOnEach(const addrinfo& addresses);
  int ListenOn(const sockaddr* address, socklen_t length, int protocol);
  int ListenOnAll();
  int Bind(int fd, const sockaddr* address, socklen_t length);

  int port_ = 0;
  std::vector<Socket> sockets_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_LISTENING_SOCKETS_H_
