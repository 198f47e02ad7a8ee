#ifndef RECURVE_SERVER_GRPC_GRPC_SERVER_H_
#define RECURVE_SERVER_GRPC_GRPC_SERVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/grpc/rpc.h"
#include "server/transport/stranger_bytes.h"
#include "server/transport/tls_files.h"

namespace recurve {

class Metrics;

struct GrpcServerOptions {
  std::string host;
  int port = 0;  // 0: any free one
  // Not null: TLS only on this port. Outlives the server.
  const TlsFiles* tls = nullptr;
  // Receives connection events; outlives the server. May be null.
  Metrics* metrics = nullptr;
  // Counts the memory of unknown clients; outlives the server. Null: no limit.
  StrangerBytes* strangers = nullptr;
  // Whether a client is known after the TLS handshake, because a certificate
  // was required.
  bool tls_clients_are_known = false;

  int64_t max_connections = 4096;  // further ones are closed
  int64_t max_streams = 1120;      // per connection
  // Names and values of a call's metadata, plus 32 bytes per entry. A larger
  // head fails the call.
  int64_t max_metadata_bytes = 8 << 10;
  int64_t max_message_bytes = 4 << 20;  // larger ones fail the call
  // Total of all messages being received; beyond it the calls that have held
  // some for longest are reset.
  int64_t max_received_bytes = 256 << 20;

  // Timeouts for the TLS handshake and the connection preface, for the head of
  // a call, for a message that has begun, and, for an unknown client, between
  // two calls.
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds message_timeout{30'000};
  std::chrono::milliseconds idle_timeout{60'000};
  // A client silent for this long is pinged, and disconnected if it does not
  // answer in time.
  std::chrono::milliseconds keepalive_interval{60'000};
  std::chrono::milliseconds keepalive_timeout{20'000};
  // A client that accepts nothing for this long while output is pending is
  // disconnected.
  std::chrono::milliseconds stalled_client_timeout{60'000};
  // A connection ended for an offence is told so immediately, and closed after
  // about this time: this slows down a client that reconnects and repeats it.
  std::chrono::milliseconds penalty{3'000};
};

// A gRPC server: HTTP/2 by libnghttp2, on a fixed number of threads, for the
// services in `methods`. All memory that a client can occupy is bounded, and
// counted before the client is known (connection.h, frame_guard.h); gRPC's own
// server offers no such bounds.
//
// Thread safety: all methods may be called from any thread.
class GrpcServer {
 public:
  // Listens when it returns OK. Unavailable if the address is not available.
  // `methods` outlive the server's threads, which end with Stop.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, RpcMethods methods);
  ~GrpcServer();  // calls Stop

  int port() const { return port_; }
  int64_t connections() const;

  // Refuses new connections and calls, gives current ones until `deadline`,
  // breaks off the rest and ends the threads.
  void Stop(std::chrono::steady_clock::time_point deadline);

 private:
  class Core;
  explicit GrpcServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::shared_ptr<Core> core_;
  int port_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_GRPC_SERVER_H_
