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
  // Not null: TLS only on this port. Outlives the server.
  const TlsFiles* tls = nullptr;
  // Counts the memory of unknown clients; outlives the server. Null: no limit.
  StrangerBytes* strangers = nullptr;
  // Called, from any thread, for each idle connection that was ended to make
  // room for another.
  std::function<void()> on_displaced = [] {};
  // Further ones are answered 503 (with TLS: closed).
  int64_t max_connections = 4096;
  // Limits of a request line with its headers, and of a body.
  uint32_t max_head_bytes = 8 << 10;
  uint64_t max_body_bytes = 4 << 20;
  // Total of all bodies being received; further ones are answered 503.
  int64_t max_bodies_bytes = 256 << 20;
  // Timeouts for the TLS handshake, for the head of a request, for its body,
  // and between two requests. If a proxy keeps connections, the proxy must be
  // the one to close an idle one, or it may send a request into a closing
  // connection. Google's load balancers keep them for longest, 600 s.
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds idle_timeout{620'000};
  // Limits idle_timeout for an unknown client (stranger_bytes.h).
  std::chrono::milliseconds stranger_idle_timeout{60'000};
  // A streamed answer without output for this long is pinged; 0: never.
  std::chrono::milliseconds stream_ping{5'000};
  // A client that accepts nothing for this long while output is pending is
  // disconnected.
  std::chrono::milliseconds stalled_client_timeout{60'000};
};

// An HTTP/1.1 server: keep-alive, pipelining, chunked bodies, streamed answers,
// on a fixed number of threads for any number of connections. A client that
// closes its side of the connection is treated as disconnected.
//
// Thread safety: all methods may be called from any thread.
class HttpServer {
 public:
  // Listens when it returns OK. Unavailable if the address is not available.
  // `handler` outlives the server's threads, which end with Stop.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HttpServerOptions& options, HttpHandler* handler);
  // REQUIRES: no owner of an HttpReply of this server will use it any more.
  ~HttpServer();

  int port() const { return port_; }
  // Including those being refused.
  int64_t connections() const;

  // From now on connections are closed after their current answer.
  void Drain();
  // Closes all connections, notifies their listeners, and ends the threads.
  void Stop();

 private:
  class Core;

  HttpServer(const HttpServerOptions& options, HttpHandler* handler);

  const std::shared_ptr<Core> core_;
  int port_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_HTTP_SERVER_H_
