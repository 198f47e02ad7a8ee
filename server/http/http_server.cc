#include "server/http/http_server.h"

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/http/http_session.h"
#include "server/transport/acceptor.h"

namespace recurve {
namespace {

using boost::asio::ip::tcp;

// They parse, encode short prompts and forward output; long prompts are
// encoded, and the model runs, on other threads.
constexpr int kThreads = 2;
// Connections above the limit that get an error at a time; further ones are
// closed without.
constexpr int64_t kMaxRefusing = 256;

}  // namespace

// The threads, the listening sockets, and the state shared by all connections.
class HttpServer::Core : public HttpSessions,
                         public std::enable_shared_from_this<Core> {
 public:
  using HttpSessions::HttpSessions;
  absl::StatusOr<int> Listen();
  void Stop();
  int64_t connections();
  void Remove(HttpSession* session) override;

 private:
  // The treatment of a new connection.
  enum class Admission { kServe, kRefuse, kClose };

  Admission Admit(const std::shared_ptr<HttpSession>& session);
  void OnSocket(tcp::socket socket,
                std::shared_ptr<boost::asio::ssl::context> tls);

  std::unique_ptr<Acceptor> acceptor_;

  struct Open {
    std::weak_ptr<HttpSession> session;
    bool refused;
  };

  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_map<HttpSession*, Open> open_ ABSL_GUARDED_BY(mu_);
  // Part of open_. A refused connection exists until its client has read the
  // refusal: it must not take the place of one that could be served.
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::StatusOr<int> HttpServer::Core::Listen() {
  Acceptor::Options accept;
  accept.protocol = "HTTP";
  accept.host = options().host;
  accept.port = options().port;
  accept.threads = kThreads;
  accept.tls = options().tls;
  RECURVE_ASSIGN_OR_RETURN(acceptor_, Acceptor::Listen(accept));
  RECURVE_RETURN_IF_ERROR(
      acceptor_->Start([this](tcp::socket socket,
                              std::shared_ptr<boost::asio::ssl::context> tls) {
        OnSocket(std::move(socket), std::move(tls));
      }));
  return acceptor_->port();
}

void HttpServer::Core::OnSocket(
    tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls) {
  auto session = std::make_shared<HttpSession>(
      shared_from_this(), std::move(socket), std::move(tls));
  switch (Admit(session)) {
    case Admission::kServe:
      session->Start();
      break;
    case Admission::kRefuse:
      session->StartRefused();
      break;
    case Admission::kClose:
      break;
  }
}

HttpServer::Core::Admission HttpServer::Core::Admit(
    const std::shared_ptr<HttpSession>& session) {
  MutexLock lock(&mu_);
  if (stopped_) return Admission::kClose;
  const int64_t served = static_cast<int64_t>(open_.size()) - refused_;
  StrangerBytes* const strangers = options().strangers;
  // An idle connection of an unknown client gives way.
  const bool refused = served >= options().max_connections &&
                       (strangers == nullptr ||
                        !strangers->EndOldest(StrangerBytes::Port::kHttp));
  if (refused && refused_ >= kMaxRefusing) return Admission::kClose;
  open_.emplace(session.get(), Open{session, refused});
  if (refused) ++refused_;
  return refused ? Admission::kRefuse : Admission::kServe;
}

int64_t HttpServer::Core::connections() {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(open_.size());
}

void HttpServer::Core::Remove(HttpSession* session) {
  MutexLock lock(&mu_);
  const auto it = open_.find(session);
  if (it == open_.end()) return;
  if (it->second.refused) --refused_;
  open_.erase(it);
}

void HttpServer::Core::Stop() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    for (const auto& [unused, open] : open_) {
      if (const auto session = open.session.lock()) session->PostClose();
    }
  }
  // The threads end after the pending operations of connections.
  if (acceptor_ != nullptr) acceptor_->Stop();
}

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler* handler)
    : core_(std::make_shared<Core>(options, handler)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HttpServerOptions& options, HttpHandler* handler) {
  auto server = std::unique_ptr<HttpServer>(new HttpServer(options, handler));
  RECURVE_ASSIGN_OR_RETURN(server->port_, server->core_->Listen());
  return server;
}

HttpServer::~HttpServer() { Stop(); }

int64_t HttpServer::connections() const { return core_->connections(); }
void HttpServer::Drain() { core_->Drain(); }
void HttpServer::Stop() { core_->Stop(); }

}  // namespace recurve
