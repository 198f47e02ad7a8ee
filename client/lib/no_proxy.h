#ifndef RECURVE_CLIENT_LIB_NO_PROXY_H_
#define RECURVE_CLIENT_LIB_NO_PROXY_H_

#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/string_view.h"

namespace recurve {

// gRPC asks the proxy that `grpc_proxy`, `https_proxy` or `http_proxy` names
// for every server, also for one on this machine, which a proxy elsewhere
// cannot reach. These say for which servers it is not to.

// Whether `host` is this machine: localhost and names below it, 127.0.0.0/8,
// ::1, and the unspecified addresses, to which a connection stays here. An IPv6
// address may be in brackets. No name is looked up.
bool IsThisMachine(absl::string_view host);

// Whether `list`, the value of a variable such as NO_PROXY, names the server.
// Entries are separated by commas or spaces: "*", a host or an address, either
// with or without a port, a network ("10.0.0.0/8"), or a domain, which names
// all hosts in it and itself, with or without "." or "*." in front.
bool MatchesNoProxy(absl::string_view list, absl::string_view host, int port);

// Turns gRPC's proxy off for the channel where `server` (HOST:PORT) is on this
// machine or named by the first of `no_grpc_proxy`, `no_proxy` and `NO_PROXY`
// that is set and not empty. gRPC itself does not read the last.
void SetProxyUse(absl::string_view server, grpc::ChannelArguments* arguments);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_NO_PROXY_H_
