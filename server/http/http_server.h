#ifndef RECURVE_SERVER_HTTP_HTTP_SERVER_H_
#define RECURVE_SERVER_HTTP_HTTP_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_reply.h"
#include "server/transport/stranger_bytes.h"
#include "server/transport/tls_files.h"

namespace recurve {

struct HttpServerOptions {
  std::string host;
  int port = 0;  // 0: any free one
  // Not null: TLS, and nothing else, on this port. Outlives the server.
  const TlsFiles* tls = nullptr;
  // Counts what clients hold that are not known yet; outlives the server. Null:
  // no limit.
  StrangerBytes* strangers = nullptr;
  // Called, from any thread, for each idle connection that was ended to make
  // room for another.
  std::function<void()> on_displaced = [] {};
  // One more is answered 503 (with TLS: closed).
  int64_t max_connections = 4096;
  // Of a request line with its headers, and of a body.
  uint32_t max_head_bytes = 8 << 10;
  uint64_t max_body_bytes = 4 << 20;
  // Of all bodies that are being received; one more is answered 503.
  int64_t max_bodies_bytes = 256 << 20;
  // What a client gets for the TLS handshake, for the head of a request, for
  // its body, and between two requests. A proxy that keeps connections must be
  // the one that closes an idle one, or it sends a request into the end of it.
  // Google's balancers keep them for longest, 600 s.
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds idle_timeout{620'000};
  // The same, if less, for a client that is not known (stranger_bytes.h).
  std::chrono::milliseconds stranger_idle_timeout{60'000};
  // A streamed answer of which nothing is written for so long is pinged; 0:
  // never.
  std::chrono::milliseconds stream_ping{5'000};
  // A client that takes nothing for so long, while output waits for it, is cut
  // off.
  std::chrono::milliseconds stalled_client_timeout{60'000};
};

// An HTTP/1.1 server: keep-alive, pipelining, chunked bodies, streamed answers,
// on a fixed number of threads whatever the number of connections. A client
// that closes its side of the connection is taken to be gone.
//
// Thread safety: all methods may be called from any thread.
class HttpServer {
 public:
  // Listens when it returns OK. Unavailable when the address cannot be had.
  // `handler` outlives the server's threads, which end with Stop.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HttpServerOptions& options, HttpHandler* handler);
  // REQUIRES: who holds an HttpReply of this server is gone, or will not use
  // it.
  ~HttpServer();

  int port() const { return port_; }
  // Those that are being refused included.
  int64_t connections() const;

  // From now on connections are closed after the answer that is on its way.
  void Drain();
  // Closes all connections, which their listeners hear, and ends the threads.
  void Stop();

 private:
  class Core;

  HttpServer(const HttpServerOptions& options, HttpHandler* handler);

  const std::shared_ptr<Core> core_;
  int port_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_HTTP_SERVER_H_
