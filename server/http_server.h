#ifndef RECURVE_SERVER_HTTP_SERVER_H_
#define RECURVE_SERVER_HTTP_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace httplib {
class Server;
}  // namespace httplib
namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace recurve {

// The HTTP side of the server: GET /metrics in Prometheus' text format.
//
// Thread safety: requests are served on threads of its own.
class HttpServer {
 public:
  // Listens on host:port (0: any free port) when it returns OK. Unavailable
  // when the address cannot be had.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& host, int port,
      std::shared_ptr<prometheus::Collectable> metrics);
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer();

  const std::unique_ptr<httplib::Server> server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_SERVER_H_
