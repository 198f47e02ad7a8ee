#include "server/transport/acceptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <exception>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "server/transport/listening_sockets.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// When no more files can be opened, the delay before the next accept.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Any client can cause the warning, so it is rate-limited.
constexpr std::chrono::seconds kWarnInterval{60};

}  // namespace

Acceptor::Acceptor(const Options& options)
    : options_(options), accepting_(asio::make_strand(io_)) {}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(
    const Options& options) {
  // Asio throws if the system has no file for its event queue, which it creates
  // with the first socket.
  try {
    auto acceptor = std::unique_ptr<Acceptor>(new Acceptor(options));
    RECURVE_RETURN_IF_ERROR(acceptor->Open());
    return acceptor;
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for ", options.protocol, ": ", error.what()));
  }
}

absl::Status Acceptor::Open() {
  RECURVE_ASSIGN_OR_RETURN(
      ListeningSockets sockets,
      ListeningSockets::Open(options_.protocol, options_.host, options_.port));
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
      return absl::UnavailableError(absl::StrCat(
          "cannot listen for ", options_.protocol, ": ", error.message()));
    }
  }
  port_ = sockets.port();
  return absl::OkStatus();
}

absl::Status Acceptor::Start(OnSocket on_socket) {
  on_socket_ = std::move(on_socket);
  work_.emplace(io_.get_executor());
  asio::post(accepting_, [this] {
    for (const auto& listening : listening_) Accept(*listening);
  });
  for (int i = 0; i < options_.threads; ++i) {
    RECURVE_ASSIGN_OR_RETURN(
        std::thread thread,
        StartThread(options_.protocol, [this] { io_.run(); }));
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

void Acceptor::StopAccepting() {
  asio::post(accepting_, [this] {
    for (const auto& listening : listening_) {
      error_code ignored;
      listening->acceptor.close(ignored);
      listening->pause.cancel(ignored);
    }
  });
}

void Acceptor::Stop() {
  StopAccepting();
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Acceptor::~Acceptor() {
  // Start could not start all threads.
  if (!threads_.empty()) Stop();
}

void Acceptor::TakeNewTls() {
  std::shared_ptr<SSL_CTX> now = options_.tls->Context(options_.tls_protocol);
  if (now == tls_files_) return;
  tls_files_ = std::move(now);
  SSL_CTX_up_ref(tls_files_.get());  // the other owner frees it, too
  tls_ = std::make_shared<asio::ssl::context>(tls_files_.get());
}

void Acceptor::Accept(Listening& listening) {
  listening.acceptor.async_accept(
      asio::make_strand(io_),
      [this, &listening](error_code error, tcp::socket socket) {
        OnAccept(listening, error, std::move(socket));
      });
}

void Acceptor::OnAccept(Listening& listening, error_code error,
                        tcp::socket socket) {
  if (!listening.acceptor.is_open()) return;
  if (error) {  // e.g. too many open files
    WarnOfFiles(error.message());
    listening.pause.expires_after(kAcceptPause);
    listening.pause.async_wait([this, &listening](error_code stopped) {
      if (!stopped) Accept(listening);
    });
    return;
  }
  if (options_.tls != nullptr) TakeNewTls();
  on_socket_(std::move(socket), tls_);
  Accept(listening);
}

void Acceptor::WarnOfFiles(const std::string& problem) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_warning_) return;
  next_warning_ = now + kWarnInterval;
  spdlog::warn(
      "{} connections have to wait: they cannot be accepted ({}); trying again "
      "every {} ms",
      options_.protocol, problem, kAcceptPause.count());
}

}  // namespace recurve
