#ifndef RECURVE_CLIENT_LIB_NO_PROXY_H_
#define RECURVE_CLIENT_LIB_NO_PROXY_H_

#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/string_view.h"

namespace recurve {

// gRPC uses the proxy named by `grpc_proxy`, `https_proxy` or `http_proxy` for
// every server, even for one on this machine, which a remote proxy cannot
// reach. These functions choose the servers to reach without the proxy.

// Whether `host` is this machine: localhost and names below it, 127.0.0.0/8,
// ::1, and the unspecified addresses, which connect to this machine. An IPv6
// address may be in brackets. No name is looked up.
bool IsThisMachine(absl::string_view host);

// Whether `list`, the value of a variable such as NO_PROXY, names the server.
// Entries are separated by commas or spaces: "*", a host or an address, either
// with or without a port, a network ("10.0.0.0/8"), or a domain, which names
// all hosts in it and itself, with or without "." or "*." in front.
bool MatchesNoProxy(absl::string_view list, absl::string_view host, int port);

// Turns gRPC's proxy off for the channel if `server` (HOST:PORT) is on this
// machine or named by the first of `no_grpc_proxy`, `no_proxy` and `NO_PROXY`
// that is set and not empty. gRPC itself does not read the last.
void SetProxyUse(absl::string_view server, grpc::ChannelArguments* arguments);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_NO_PROXY_H_
