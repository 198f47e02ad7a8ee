#include "server/http_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "httplib.h"
#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"

namespace recurve {

HttpServer::HttpServer() : server_(std::make_unique<httplib::Server>()) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& host, int port,
    std::shared_ptr<prometheus::Collectable> metrics) {
  auto http = std::unique_ptr<HttpServer>(new HttpServer);
  httplib::Server& server = *http->server_;
  // The library's default sets SO_REUSEPORT: two servers would share a port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  // Scrapes come seconds apart.
  server.new_task_queue = [] { return new httplib::ThreadPool(2); };
  server.set_payload_max_length(1 << 20);
  // An idle connection would hold a thread, and the end of the program.
  server.set_keep_alive_max_count(1);
  server.set_read_timeout(1);
  server.Get("/metrics",
             [metrics = std::move(metrics)](const httplib::Request&,
                                            httplib::Response& response) {
               response.set_content(
                   prometheus::TextSerializer().Serialize(metrics->Collect()),
                   "text/plain; version=0.0.4");
             });
  http->port_ = port == 0
                    ? server.bind_to_any_port(host.c_str())
                    : (server.bind_to_port(host.c_str(), port) ? port : -1);
  if (http->port_ <= 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for HTTP on ", host, ":", port,
                     ": the address is not available"));
  }
  http->thread_ = std::thread([&server] { server.listen_after_bind(); });
  // A stop before the loop has begun would be lost.
  while (!server.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return http;
}

HttpServer::~HttpServer() {
  if (!thread_.joinable()) return;
  server_->stop();
  thread_.join();
}

}  // namespace recurve
