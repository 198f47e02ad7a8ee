#ifndef RECURVE_SERVER_TRANSPORT_TRANSPORT_STREAM_H_
#define RECURVE_SERVER_TRANSPORT_TRANSPORT_STREAM_H_

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <optional>

namespace recurve {

// A socket with or without TLS.
class TransportStream {
 public:
  TransportStream(boost::asio::ip::tcp::socket socket,
                  std::shared_ptr<boost::asio::ssl::context> tls)
      : tls_(std::move(tls)) {
    if (tls_ != nullptr) {
      secure_.emplace(std::move(socket), *tls_);
    } else {
      plain_.emplace(std::move(socket));
    }
  }

  bool secure() const { return secure_.has_value(); }
  boost::asio::ip::tcp::socket& socket() {
    return secure_ ? secure_->next_layer() : *plain_;
  }

  template <typename Handler>
  void Handshake(Handler handler) {
    secure_->async_handshake(boost::asio::ssl::stream_base::server,
                             std::move(handler));
  }
  // Tells the client that no more output follows, and waits for it to do the
  // same. With TLS only; no read may be begun after it.
  template <typename Handler>
  void Shutdown(Handler handler) {
    secure_->async_shutdown(std::move(handler));
  }
  template <typename Handler>
  void Read(boost::asio::mutable_buffer buffer, Handler handler) {
    if (secure_) {
      secure_->async_read_some(buffer, std::move(handler));
    } else {
      plain_->async_read_some(buffer, std::move(handler));
    }
  }
  template <typename Handler>
  void Write(boost::asio::const_buffer buffer, Handler handler) {
    if (secure_) {
      secure_->async_write_some(buffer, std::move(handler));
    } else {
      plain_->async_write_some(buffer, std::move(handler));
    }
  }

 private:
  const std::shared_ptr<boost::asio::ssl::context> tls_;
  std::optional<boost::asio::ip::tcp::socket> plain_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket>> secure_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_TRANSPORT_STREAM_H_
