#ifndef RECURVE_SERVER_TRANSPORT_H_
#define RECURVE_SERVER_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "grpcpp/server_builder.h"

namespace recurve {

// How connections are protected, of gRPC and HTTP alike. Files are PEM and are
// read again every `tls_reload`, so that certificates can be renewed while the
// server runs: new connections get the new ones, open ones stay. See TlsFiles.
struct TransportOptions {
  std::string tls_cert;  // the server's chain, its own first; empty: plaintext
  std::string tls_key;   // of the first certificate
  // Not empty: clients must have a certificate that one of these signed.
  std::string tls_client_ca;
  std::chrono::seconds tls_reload{60};
};

// A peer that does not answer a ping of the server, or acknowledges nothing of
// what it was sent, for so long is gone.
inline constexpr std::chrono::milliseconds kKeepaliveTimeout{20'000};

struct TransportLimits {
  // Of one connection. Clients hold more back until one of these has ended.
  int64_t max_streams = 0;
  // Of all that is being received, of all connections. Beyond it gRPC resets
  // streams until there is room again, and does not ask whose: it is there to
  // keep the process alive, not to share memory out.
  int64_t buffer_bytes = 0;
};

// Bounds what a peer may ask of a connection: metadata, pings, no compressed
// messages; and finds out about peers that are gone.
void LimitTransport(const TransportLimits& limits,
                    grpc::ServerBuilder* builder);

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_H_
