#ifndef RECURVE_SERVER_LISTEN_CHECK_H_
#define RECURVE_SERVER_LISTEN_CHECK_H_

#include <netdb.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// The addresses of a host, `port` with them, as a list by ai_next; of a
// wildcard, those that listen on all.
using ListenAddresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
absl::StatusOr<ListenAddresses> ResolveListenAddresses(absl::string_view what,
                                                       const std::string& host,
                                                       int port);

// Unavailable: "cannot listen for `what` on host:port: reason".
absl::Status CannotListen(absl::string_view what, const std::string& host,
                          int port, absl::string_view reason);

// Whether `port` of `host` can be listened on now, 0 being any free one:
// Unavailable, with `what` ("HTTP") and the reason, if not. For a word in good
// time: another process may take the port before it is listened on.
absl::Status CheckCanListen(absl::string_view what, const std::string& host,
                            int port);

}  // namespace recurve

#endif  // RECURVE_SERVER_LISTEN_CHECK_H_
