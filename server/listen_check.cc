#include "server/listen_check.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/server.h"

namespace recurve {
namespace {

// 0, or errno.
int TryListen(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC,
                        address.ai_protocol);
  if (fd < 0) return errno;
  const absl::Cleanup close_fd = [fd] { close(fd); };
  // As those who listen do: what lingers of an earlier process is no obstacle.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0) return errno;
  return listen(fd, 1) == 0 ? 0 : errno;
}

}  // namespace

absl::StatusOr<ListenAddresses> ResolveListenAddresses(absl::string_view what,
                                                       const std::string& host,
                                                       int port) {
  std::string name = host;
  if (name.size() > 2 && name.front() == '[') {
    name = name.substr(1, name.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* addresses = nullptr;
  const int error =
      getaddrinfo(name.c_str(), absl::StrCat(port).c_str(), &hints, &addresses);
  if (error != 0) return CannotListen(what, host, port, gai_strerror(error));
  return ListenAddresses(addresses, freeaddrinfo);
}

absl::Status CannotListen(absl::string_view what, const std::string& host,
                          int port, absl::string_view reason) {
  return absl::UnavailableError(absl::StrCat(
      "cannot listen for ", what, " on ", HostPort(host, port), ": ", reason));
}

absl::Status CheckCanListen(absl::string_view what, const std::string& host,
                            int port) {
  RECURVE_ASSIGN_OR_RETURN(const ListenAddresses addresses,
                           ResolveListenAddresses(what, host, port));
  // A name may have addresses that this machine has no use for, as "localhost"
  // has without IPv6: one that can be had is enough.
  int problem = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const int result = TryListen(*a);
    if (result == 0) return absl::OkStatus();
    if (problem == 0) problem = result;
  }
  return CannotListen(what, host, port, std::strerror(problem));
}

}  // namespace recurve
