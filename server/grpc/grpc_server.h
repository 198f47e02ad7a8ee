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
  // Not null: TLS, and nothing else, on this port. Outlives the server.
  const TlsFiles* tls = nullptr;
  // Hears of connections; outlives the server. Null: nobody does.
  Metrics* metrics = nullptr;
  // Counts what clients hold that are not known yet; outlives the server. Null:
  // no limit.
  StrangerBytes* strangers = nullptr;
  // Whether a client that has completed the TLS handshake is known, since it
  // had to show a certificate.
  bool tls_clients_are_known = false;

  int64_t max_connections = 4096;  // one more is closed
  int64_t max_streams = 1120;      // of one connection
  // Names and values of a call's metadata, with 32 bytes more an entry. More
  // fail the call.
  int64_t max_metadata_bytes = 8 << 10;
  int64_t max_message_bytes = 4 << 20;  // larger ones fail the call
  // Of all messages that are being received; beyond it the calls that have
  // held some for longest are reset.
  int64_t max_received_bytes = 256 << 20;

  // What a client gets for the TLS handshake and the connection preface, for
  // the head of a call, for a message that it has begun, and, while it is not
  // known, between two calls.
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds message_timeout{30'000};
  std::chrono::milliseconds idle_timeout{60'000};
  // A client that has been silent for so long is asked whether it is there, and
  // is gone if it does not answer in time.
  std::chrono::milliseconds keepalive_interval{60'000};
  std::chrono::milliseconds keepalive_timeout{20'000};
  // A client that takes nothing for so long, while output waits for it, is cut
  // off.
  std::chrono::milliseconds stalled_client_timeout{60'000};
  // A connection that is ended for an offence is told so at once, and closed
  // after about this time: a client that goes on, and connects again when it is
  // closed, is no faster than that.
  std::chrono::milliseconds penalty{3'000};
};

// A gRPC server: HTTP/2 by libnghttp2, on a fixed number of threads, in front
// of the services that `methods` name. Everything a client may make it hold is
// bounded, and counted before the client is known (connection.h,
// frame_guard.h); that is why it is not gRPC's own server, which offers no such
// bounds.
//
// Thread safety: all methods may be called from any thread.
class GrpcServer {
 public:
  // Listens when it returns OK. Unavailable when the address cannot be had.
  // `methods` outlive the server's threads, which end with Stop.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, RpcMethods methods);
  ~GrpcServer();  // stops

  int port() const { return port_; }
  int64_t connections() const;

  // Takes no more connections and calls, gives those that there are until
  // `deadline`, breaks off what is left and ends the threads.
  void Stop(std::chrono::steady_clock::time_point deadline);

 private:
  class Core;
  explicit GrpcServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::shared_ptr<Core> core_;
  int port_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_GRPC_SERVER_H_
