#ifndef RECURVE_SERVER_TRANSPORT_ACCEPTOR_H_
#define RECURVE_SERVER_TRANSPORT_ACCEPTOR_H_

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <openssl/ssl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/transport/tls_files.h"

namespace recurve {

// Accepts the connections of one port, and runs their handlers on a fixed
// number of threads.
//
// When the process runs out of file descriptors it waits, and continues once
// one is free.
//
// Thread safety: Start and Stop are called from one thread at a time.
class Acceptor {
 public:
  struct Options {
    std::string protocol;  // "gRPC", for messages
    std::string host;
    int port = 0;  // 0: any free one
    int threads = 2;
    const TlsFiles* tls = nullptr;  // null: plaintext
    TlsFiles::Protocol tls_protocol = TlsFiles::Protocol::kHttp1;
  };
  // A new connection, whose executor is a separate strand, and its TLS context,
  // or null. Called on one thread at a time.
  using OnSocket =
      std::function<void(boost::asio::ip::tcp::socket,
                         std::shared_ptr<boost::asio::ssl::context>)>;

  // Listens when it returns OK, like ListeningSockets; connections wait until
  // Start. Unavailable, with the reason.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(
      const Options& options);
  // REQUIRES: Stop was called, or Start was not.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  int port() const { return port_; }
  // ResourceExhausted if the system refuses a thread.
  absl::Status Start(OnSocket on_socket);
  // Stops accepting, soon.
  void StopAccepting();
  // Also ends the threads, after the pending operations of connections.
  void Stop();

 private:
  using Executor = boost::asio::io_context::executor_type;

  // A listening socket.
  struct Listening {
    explicit Listening(const boost::asio::strand<Executor>& strand)
        : acceptor(strand), pause(strand) {}
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer pause;
  };

  explicit Acceptor(const Options& options);
  absl::Status Open();
  void Accept(Listening& listening);
  void OnAccept(Listening& listening, boost::system::error_code error,
                boost::asio::ip::tcp::socket socket);
  void TakeNewTls();
  void WarnOfFiles(const std::string& problem);

  const Options options_;
  boost::asio::io_context io_;
  std::optional<boost::asio::executor_work_guard<Executor>> work_;
  boost::asio::strand<Executor> accepting_;
  std::vector<std::unique_ptr<Listening>> listening_;
  OnSocket on_socket_;
  int port_ = 0;
  std::vector<std::thread> threads_;

  // Used while accepting only. Null: plaintext.
  std::shared_ptr<SSL_CTX> tls_files_;
  std::shared_ptr<boost::asio::ssl::context> tls_;  // for tls_files_
  std::chrono::steady_clock::time_point next_warning_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_ACCEPTOR_H_
