#ifndef RECURVE_SERVER_HTTP_HTTP_SESSION_H_
#define RECURVE_SERVER_HTTP_HTTP_SESSION_H_

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "server/http/http_reply.h"
#include "server/http/http_server.h"
#include "server/transport/stranger_bytes.h"
#include "server/transport/transport_stream.h"

namespace recurve {

class HttpSession;

// State shared by the connections of a server. Thread-safe.
class HttpSessions {
 public:
  HttpSessions(const HttpServerOptions& options, HttpHandler* handler)
      : options_(options), handler_(handler) {}
  virtual ~HttpSessions() = default;
  // A connection was closed; called once for each.
  virtual void Remove(HttpSession* session) = 0;

  const HttpServerOptions& options() const { return options_; }
  HttpHandler& handler() { return *handler_; }
  bool draining() const { return draining_.load(); }
  void Drain() { draining_ = true; }

  // False if the limit would be exceeded.
  bool AddBodyBytes(int64_t bytes) {
    return body_bytes_.fetch_add(bytes) + bytes <= options_.max_bodies_bytes;
  }
  void RemoveBodyBytes(int64_t bytes) { body_bytes_.fetch_sub(bytes); }

 private:
  const HttpServerOptions options_;
  HttpHandler* const handler_;
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> body_bytes_{0};
};

// One connection: reads a request, has it answered, reads the next. A read is
// always in progress, so that a disconnect is noticed, and at most one write.
// All private methods run on the connection's strand.
class HttpSession : public HttpReply,
                    public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(std::shared_ptr<HttpSessions> sessions,
              boost::asio::ip::tcp::socket socket,
              std::shared_ptr<boost::asio::ssl::context> tls);

  void Start();
  // Above the limit: answers with an error and closes.
  void StartRefused();
  void PostClose();
  // Ends immediately, to make room for another, unless the client has become
  // known.
  void PostDisplace();

  void Listen(std::shared_ptr<HttpListener> listener) override;
  void Send(HttpResponse response) override;
  void SendMade(std::function<HttpResponse()> make) override;
  void Begin(HttpResponse head) override;
  void Write(std::string piece) override;
  void Finish() override;
  void Continue(std::function<void()> f) override;
  void Drop() override;

 private:
  enum class State { kHead, kBody, kAnswering, kLingering, kClosed };

  template <typename F>
  void Post(F f);

  void SetDeadline(std::chrono::milliseconds time);
  void ClearDeadline();
  void OnDeadline();
  // While an answer is written: checks whether the client accepts any of it.
  void WatchReader();
  void CheckReader();

  void ExpectRequest(std::chrono::milliseconds time);

  void Read();
  void OnRead(size_t bytes);

  void Parse();
  void OnHead();
  void SetPath(absl::string_view target);
  // False, and the request is refused, if all bodies together are too large.
  bool CountBody();
  void ReleaseBody();
  void StartAnswer();
  // The answer is sent, or never will be.
  void CountAnswer();
  void Dispatch();

  void RefuseMalformed(boost::system::error_code error);
  void RefuseStranger();
  // Answers a connection above the limit.
  void RefuseConnection(const std::string& message);
  // Answers an incomplete request, after which the connection is unusable.
  void Refuse(const HttpResponse& response);

  void SendNow(const HttpResponse& response, bool keep_alive);
  void AppendPiece(const std::string& piece);

  void WriteMore();
  void OnAllWritten();
  // A streamed answer has no output.
  void WaitToPing();
  void Ping();
  // The last answer of the connection is written: ends the output, and waits
  // for the answer to leave.
  void Linger();
  void CloseSending();
  void Discard();

  void Close();   // the client has disconnected
  void CutOff();  // the client is connected, but does not read
  void CloseWith(const absl::Status& status);

  const std::shared_ptr<HttpSessions> sessions_;
  const boost::asio::ip::tcp::socket::executor_type strand_;
  TransportStream transport_;
  boost::asio::steady_timer timer_;
  State state_ = State::kHead;
  std::atomic<bool> closed_{false};
  bool known_;  // the client is authorised, or need not be

  static constexpr size_t kReadBytes = 8 << 10;
  StrangerBytes::Share share_;
  // A read in progress fills only read_, so that input_ may be used meanwhile.
  bool reading_ = false;
  // A read has seen the client's end of file. Asio may not report it a second
  // time: it waits for new events, and there are none.
  bool ended_ = false;
  std::array<char, kReadBytes> read_;
  boost::beast::flat_buffer input_;  // received, not parsed yet
  bool discards_ = false;  // too much was sent ahead: no more is parsed
  std::optional<
      boost::beast::http::request_parser<boost::beast::http::string_body>>
      parser_;
  size_t head_bytes_ = 0;   // parsed bytes of an incomplete head
  char head_end_ = 0;       // the last of them
  int64_t body_bytes_ = 0;  // as counted by sessions_
  int64_t lingered_ = 0;    // unwanted bytes read
  HttpRequest request_;
  std::string path_;
  std::optional<std::chrono::steady_clock::time_point>
      asked_;  // not counted as answered yet
  int status_ = 0;
  int status_to_send_ = 0;

  int version_ = 11;  // of the request
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool streaming_ = false;
  bool finished_ = false;  // no more output after the buffers
  std::string ping_;       // for the streamed answer
  bool pinging_ = false;   // the buffers contain only a ping
  bool pinged_ = false;    // the last piece was a ping
  std::shared_ptr<HttpListener> listener_;
  bool writing_ = false;
  size_t written_ = 0;  // written bytes of output_
  std::string output_;  // being written
  // Unacknowledged bytes when the client last accepted some, and that time.
  int untaken_bytes_ = 0;
  std::chrono::steady_clock::time_point taken_;
  std::string pending_;  // follows it
};

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_HTTP_SESSION_H_
