#include "server/http_server.h"

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <fcntl.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "server/http_session.h"
#include "server/listening_sockets.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// They parse, encode short prompts and pass output on; long prompts are encoded
// elsewhere, and the model runs elsewhere.
constexpr int kThreads = 2;
// When no more files can be opened, the next try to accept.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Connections above the limit that are told so at a time; more are just closed.
constexpr int64_t kMaxRefusing = 256;

}  // namespace

// The threads, the listening sockets, and what all connections share.
class HttpServer::Core : public HttpSessions,
                         public std::enable_shared_from_this<Core> {
 public:
  using HttpSessions::HttpSessions;
  absl::StatusOr<int> Listen();
  void Stop();
  int64_t connections();
  void Remove(HttpSession* session) override;

 private:
  // A listening socket.
  struct Listening {
    explicit Listening(
        const asio::strand<asio::io_context::executor_type>& strand)
        : acceptor(strand), pause(strand) {}
    tcp::acceptor acceptor;
    asio::steady_timer pause;
  };

  // What becomes of a connection.
  enum class Admission { kServe, kRefuse, kClose };

  Admission Admit(const std::shared_ptr<HttpSession>& session);
  void TakeNewTls();
  void Accept(Listening& listening);
  void OnAccept(Listening& listening, error_code error, tcp::socket socket);

  asio::io_context io_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>>
      work_;
  asio::strand<asio::io_context::executor_type> accepting_{
      asio::make_strand(io_)};
  std::vector<std::unique_ptr<Listening>> listening_;
  std::vector<std::thread> threads_;

  // While accepting only. Null: plaintext.
  std::shared_ptr<SSL_CTX> tls_files_;
  std::shared_ptr<asio::ssl::context> tls_;  // of tls_files_

  struct Open {
    std::weak_ptr<HttpSession> session;
    bool refused;
  };

  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_map<HttpSession*, Open> open_ ABSL_GUARDED_BY(mu_);
  // Of open_. A refused one is there for as long as its client takes to read
  // that it is: it must not take the place of one that would be served.
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::StatusOr<int> HttpServer::Core::Listen() {
  RECURVE_ASSIGN_OR_RETURN(
      ListeningSockets sockets,
      ListeningSockets::Open("HTTP", options().host, options().port));
  for (const ListeningSockets::Socket& socket : sockets.sockets()) {
    listening_.push_back(std::make_unique<Listening>(accepting_));
    const int fd = fcntl(socket.fd, F_DUPFD_CLOEXEC, 0);
    error_code error;
    if (fd < 0) {
      error.assign(errno, boost::system::system_category());
    } else {
      listening_.back()->acceptor.assign(
          socket.family == AF_INET ? tcp::v4() : tcp::v6(), fd, error);
      if (error) close(fd);
    }
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen for HTTP: ", error.message()));
    }
  }
  work_.emplace(io_.get_executor());
  asio::post(accepting_, [this] {
    for (const auto& listening : listening_) Accept(*listening);
  });
  for (int i = 0; i < kThreads; ++i) {
    RECURVE_ASSIGN_OR_RETURN(std::thread thread,
                             StartThread("HTTP", [this] { io_.run(); }));
    threads_.push_back(std::move(thread));
  }
  return sockets.port();
}

void HttpServer::Core::TakeNewTls() {
  std::shared_ptr<SSL_CTX> now = options().tls->Context();
  if (now == tls_files_) return;
  tls_files_ = std::move(now);
  SSL_CTX_up_ref(tls_files_.get());  // the other owner frees it, too
  tls_ = std::make_shared<asio::ssl::context>(tls_files_.get());
}

void HttpServer::Core::Accept(Listening& listening) {
  // The thread that accepts gives each connection a strand of its own.
  listening.acceptor.async_accept(
      asio::make_strand(io_),
      [this, &listening](error_code error, tcp::socket socket) {
        OnAccept(listening, error, std::move(socket));
      });
}

void HttpServer::Core::OnAccept(Listening& listening, error_code error,
                                tcp::socket socket) {
  if (!listening.acceptor.is_open()) return;
  if (error) {  // too many open files, say
    listening.pause.expires_after(kAcceptPause);
    listening.pause.async_wait([this, &listening](error_code stopped) {
      if (!stopped) Accept(listening);
    });
    return;
  }
  if (options().tls != nullptr) TakeNewTls();
  auto session = std::make_shared<HttpSession>(shared_from_this(),
                                               std::move(socket), tls_);
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
  Accept(listening);
}

HttpServer::Core::Admission HttpServer::Core::Admit(
    const std::shared_ptr<HttpSession>& session) {
  MutexLock lock(&mu_);
  if (stopped_) return Admission::kClose;
  const int64_t served = static_cast<int64_t>(open_.size()) - refused_;
  const bool refused = served >= options().max_connections;
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
  asio::post(accepting_, [this] {
    for (const auto& listening : listening_) {
      error_code ignored;
      listening->acceptor.close(ignored);
      listening->pause.cancel(ignored);
    }
  });
  // The threads end when what the connections had under way is over.
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
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
