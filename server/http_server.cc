#include "server/http_server.h"

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <thread>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// They parse, encode prompts and pass output on; the model runs elsewhere.
constexpr int kThreads = 2;
constexpr size_t kReadBytes = 8 << 10;
// The system would take megabytes for a client that does not read; what waits
// is to be seen, so that the client's sequences pause.
constexpr int kSendBufferBytes = 64 << 10;
// What a client may send ahead while its request is answered.
constexpr size_t kMaxAheadBytes = 16 << 10;
// After an answer that ends the connection, what the client is still sending is
// read for so long, or the system would throw the answer away with it.
constexpr std::chrono::milliseconds kLingerTime{2'000};
constexpr int64_t kMaxLingerBytes = 16 << 20;
// When no more files can be opened, the next try to accept.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Connections above the limit that are told so at a time; more are just closed.
constexpr int64_t kMaxRefusing = 256;
// nginx's status for a client that left before its answer was whole.
constexpr int kClientGone = 499;

absl::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

std::string Head(const HttpResponse& response, int version, bool keep_alive,
                 std::optional<size_t> length) {
  std::string head = absl::StrCat(
      "HTTP/1.", version >= 11 ? 1 : 0, " ", response.status, " ",
      View(http::obsolete_reason(static_cast<http::status>(response.status))),
      "\r\nContent-Type: ", response.content_type, "\r\n");
  for (const auto& [name, value] : response.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (length) {
    absl::StrAppend(&head, "Content-Length: ", *length, "\r\n");
  } else if (version >= 11) {
    absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  }
  if (!keep_alive) {
    absl::StrAppend(&head, "Connection: close\r\n");
  } else if (version < 11) {
    absl::StrAppend(&head, "Connection: keep-alive\r\n");
  }
  return head + "\r\n";
}

}  // namespace

// A socket with or without TLS.
class HttpServer::Transport {
 public:
  Transport(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls)
      : tls_(std::move(tls)) {
    if (tls_ != nullptr) {
      secure_.emplace(std::move(socket), *tls_);
    } else {
      plain_.emplace(std::move(socket));
    }
  }

  bool secure() const { return secure_.has_value(); }
  tcp::socket& socket() { return secure_ ? secure_->next_layer() : *plain_; }

  template <typename Handler>
  void Handshake(Handler handler) {
    secure_->async_handshake(asio::ssl::stream_base::server,
                             std::move(handler));
  }
  template <typename Handler>
  void Read(asio::mutable_buffer buffer, Handler handler) {
    if (secure_) {
      secure_->async_read_some(buffer, std::move(handler));
    } else {
      plain_->async_read_some(buffer, std::move(handler));
    }
  }
  template <typename Handler>
  void Write(asio::const_buffer buffer, Handler handler) {
    if (secure_) {
      secure_->async_write_some(buffer, std::move(handler));
    } else {
      plain_->async_write_some(buffer, std::move(handler));
    }
  }

 private:
  const std::shared_ptr<asio::ssl::context> tls_;
  std::optional<tcp::socket> plain_;
  std::optional<asio::ssl::stream<tcp::socket>> secure_;
};

// The threads, the listening socket, and what all connections share.
class HttpServer::Core : public std::enable_shared_from_this<Core> {
 public:
  absl::StatusOr<int> Listen(const HttpServerOptions& options,
                             HttpHandler* handler);
  void Stop();

  const HttpServerOptions& options() const { return options_; }
  HttpHandler& handler() { return *handler_; }
  bool draining() const { return draining_.load(); }
  void Drain() { draining_ = true; }
  int64_t connections() const { return count_.load(); }

  // False when there would be too much.
  bool AddBodyBytes(int64_t bytes) {
    return body_bytes_.fetch_add(bytes) + bytes <= options_.max_bodies_bytes;
  }
  void RemoveBodyBytes(int64_t bytes) { body_bytes_.fetch_sub(bytes); }
  void Remove(Connection* connection);

 private:
  void TakeNewTls();
  void Accept();
  void OnAccept(error_code error, tcp::socket socket);

  HttpServerOptions options_;
  HttpHandler* handler_ = nullptr;
  asio::io_context io_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>>
      work_;
  asio::strand<asio::io_context::executor_type> accepting_{
      asio::make_strand(io_)};
  tcp::acceptor acceptor_{accepting_};
  asio::steady_timer pause_{accepting_};
  std::vector<std::thread> threads_;

  // While accepting only. Null: plaintext.
  std::shared_ptr<SSL_CTX> tls_files_;
  std::shared_ptr<asio::ssl::context> tls_;  // of tls_files_

  std::atomic<bool> draining_{false};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> body_bytes_{0};

  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> open_
      ABSL_GUARDED_BY(mu_);
};

// One connection: reads a request, has it answered, reads the next. One read is
// always under way, so that a client that leaves is noticed, and at most one
// write. All private methods run on the connection's strand.
class HttpServer::Connection : public HttpReply,
                               public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Core> core, tcp::socket socket,
             std::shared_ptr<asio::ssl::context> tls)
      : core_(std::move(core)),
        strand_(socket.get_executor()),
        transport_(std::move(socket), std::move(tls)),
        timer_(strand_) {}

  void Start() {
    Post([this] {
      error_code ignored;
      transport_.socket().set_option(tcp::no_delay(true), ignored);
      transport_.socket().set_option(
          tcp::socket::send_buffer_size(kSendBufferBytes), ignored);
      ExpectRequest(core_->options().head_timeout);
      if (!transport_.secure()) return Read();
      SetDeadline(core_->options().handshake_timeout);
      transport_.Handshake([self = shared_from_this()](error_code error) {
        if (error) return self->Close();
        self->SetDeadline(self->core_->options().head_timeout);
        self->Read();
      });
    });
  }
  // One too many: says so and closes.
  void StartRefused() {
    Post([this] {
      if (transport_.secure()) return Close();
      StartAnswer();
      HttpResponse response = HttpError(
          503, "the server has as many connections as it takes; come back");
      response.headers.emplace_back("Retry-After", "1");
      SendNow(response, /*keep_alive=*/false);
      Read();
    });
  }
  void PostClose() {
    Post([this] { Close(); });
  }

  void Listen(std::shared_ptr<HttpListener> listener) override {
    listener_ = std::move(listener);
  }
  void Send(HttpResponse response) override {
    Post([this, response = std::move(response)] {
      if (state_ != State::kAnswering) return;
      SendNow(response, keep_alive_);
    });
  }
  void Begin(HttpResponse head) override {
    Post([this, head = std::move(head)] {
      if (state_ != State::kAnswering) return;
      keep_alive_ = keep_alive_ && version_ >= 11 && !core_->draining();
      streaming_ = true;
      status_to_send_ = head.status;
      pending_ += recurve::Head(head, version_, keep_alive_, std::nullopt);
      AppendPiece(head.body);
      WriteMore();
    });
  }
  void Write(std::string piece) override {
    Post([this, piece = std::move(piece)] {
      if (state_ != State::kAnswering) return;
      AppendPiece(piece);
      WriteMore();
    });
  }
  void Finish() override {
    Post([this] {
      if (state_ != State::kAnswering) return;
      if (version_ >= 11) pending_ += "0\r\n\r\n";
      finished_ = true;
      WriteMore();
    });
  }
  void Drop() override { PostClose(); }

 private:
  enum class State { kHead, kBody, kAnswering, kLingering, kClosed };

  template <typename F>
  void Post(F f) {
    // Nothing would run it once the threads have ended; all connections are
    // closed by then.
    if (closed_.load()) return;
    asio::post(strand_, [self = shared_from_this(), f = std::move(f)] { f(); });
  }

  void SetDeadline(std::chrono::milliseconds time) {
    timer_.expires_after(time);
    timer_.async_wait(
        [self = shared_from_this(), due = timer_.expiry()](error_code error) {
          if (!error && self->timer_.expiry() == due) self->OnDeadline();
        });
  }
  void ClearDeadline() { timer_.expires_at(Clock::time_point::max()); }
  void OnDeadline() {
    const bool receiving =
        state_ == State::kBody ||
        (state_ == State::kHead && parser_ && parser_->got_some());
    if (receiving) {
      Refuse(HttpError(408, "the request did not come in time"));
    } else {
      Close();
    }
  }

  void ExpectRequest(std::chrono::milliseconds time) {
    state_ = State::kHead;
    parser_.emplace();
    parser_->header_limit(core_->options().max_head_bytes);
    parser_->body_limit(core_->options().max_body_bytes);
    request_ = HttpRequest();
    path_.clear();
    asked_.reset();
    head_only_ = streaming_ = finished_ = false;
    version_ = 11;
    keep_alive_ = true;
    SetDeadline(time);
  }

  void Read() {
    if (reading_ || state_ == State::kClosed) return;
    if (state_ == State::kAnswering && input_.size() >= kMaxAheadBytes) return;
    reading_ = true;
    transport_.Read(asio::buffer(read_), [self = shared_from_this()](
                                             error_code error, size_t bytes) {
      self->reading_ = false;
      // The end of an answer is on its way, which a client may have read before
      // it left: the write says whether it was taken.
      if (error && self->state_ == State::kAnswering && self->finished_ &&
          self->writing_) {
        return;
      }
      if (error) return self->Close();
      self->OnRead(bytes);
    });
  }
  void OnRead(size_t bytes) {
    if (state_ != State::kLingering) {
      asio::buffer_copy(input_.prepare(bytes), asio::buffer(read_, bytes));
      input_.commit(bytes);
    }
    switch (state_) {
      case State::kHead:
      case State::kBody:
        return Parse();
      case State::kAnswering:
        return Read();
      case State::kLingering:
        lingered_ += static_cast<int64_t>(bytes);
        return lingered_ > kMaxLingerBytes ? Close() : Read();
      case State::kClosed:
        return;
    }
  }

  void Parse() {
    while (state_ == State::kHead || state_ == State::kBody) {
      if (input_.size() == 0) return Read();
      if (!parser_->got_some()) SetDeadline(core_->options().head_timeout);
      error_code error;
      const size_t used = parser_->put(input_.data(), error);
      input_.consume(used);
      const bool more = error == http::error::need_more;
      if (error && !more) return RefuseMalformed(error);
      if (state_ == State::kHead && parser_->is_header_done()) OnHead();
      if (state_ != State::kBody) {
        if (state_ == State::kHead) return Read();
        return;
      }
      if (!CountBody()) return;
      if (parser_->is_done()) return Dispatch();
      if (more || used == 0) return Read();
    }
  }
  void OnHead() {
    state_ = State::kBody;
    SetDeadline(core_->options().body_timeout);
    const auto& message = parser_->get();
    version_ = static_cast<int>(message.version());
    keep_alive_ = message.keep_alive();
    head_only_ = message.method() == http::verb::head;
    request_.method = std::string(View(message.method_string()));
    const absl::string_view target = View(message.target());
    request_.path = path_ = std::string(target.substr(0, target.find('?')));
    asked_ = Clock::now();
    request_.content_type =
        std::string(View(message[http::field::content_type]));
    const auto [first, last] = message.equal_range(http::field::authorization);
    for (auto it = first; it != last; ++it) {
      request_.authorization.emplace_back(View(it->value()));
    }
    if (auto refusal = core_->handler().CheckHead(request_)) {
      return Refuse(*refusal);
    }
    if (absl::EqualsIgnoreCase(View(message[http::field::expect]),
                               "100-continue") &&
        version_ >= 11) {
      pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
      WriteMore();
    }
  }
  // False, and the request is refused, when all bodies together are too large.
  bool CountBody() {
    const int64_t now = static_cast<int64_t>(parser_->get().body().size());
    const int64_t difference = now - std::exchange(body_bytes_, now);
    if (core_->AddBodyBytes(difference)) return true;
    HttpResponse response =
        HttpError(503, "the server receives as much as it takes; come back");
    response.headers.emplace_back("Retry-After", "1");
    Refuse(response);
    return false;
  }
  void ReleaseBody() {
    parser_.reset();
    core_->RemoveBodyBytes(std::exchange(body_bytes_, 0));
  }
  void StartAnswer() {
    state_ = State::kAnswering;
    status_ = kClientGone;  // until there is another
    if (!asked_) asked_ = Clock::now();
  }
  // The answer is sent, or never will be.
  void CountAnswer() {
    const auto asked = std::exchange(asked_, std::nullopt);
    if (!asked) return;
    core_->handler().OnAnswered(
        path_, status_,
        std::chrono::duration<double>(Clock::now() - *asked).count());
  }
  void Dispatch() {
    StartAnswer();
    ClearDeadline();
    request_.body = std::move(parser_->get().body());
    core_->handler().Handle(std::move(request_), shared_from_this());
    ReleaseBody();
    Read();
  }

  void RefuseMalformed(error_code error) {
    const auto& options = core_->options();
    if (error == http::error::header_limit) {
      Refuse(HttpError(431, absl::StrCat("the request line and its headers "
                                         "have more than ",
                                         options.max_head_bytes, " bytes")));
    } else if (error == http::error::body_limit) {
      Refuse(HttpError(413, absl::StrCat("the body has more than ",
                                         options.max_body_bytes, " bytes")));
    } else {
      Refuse(HttpError(400, "this is no well-formed HTTP request"));
    }
  }
  // Answers a request that is not whole, after which the connection cannot be
  // used.
  void Refuse(const HttpResponse& response) {
    StartAnswer();
    ReleaseBody();
    SendNow(response, /*keep_alive=*/false);
    Read();
  }

  void SendNow(const HttpResponse& response, bool keep_alive) {
    keep_alive_ = keep_alive && !core_->draining();
    pending_ +=
        recurve::Head(response, version_, keep_alive_, response.body.size());
    if (!head_only_) pending_ += response.body;
    status_to_send_ = response.status;
    finished_ = true;
    WriteMore();
  }
  void AppendPiece(const std::string& piece) {
    if (piece.empty()) return;
    if (version_ < 11) {
      pending_ += piece;
    } else {
      absl::StrAppend(&pending_, absl::Hex(piece.size()), "\r\n", piece,
                      "\r\n");
    }
  }

  void WriteMore() {
    if (writing_ || state_ == State::kClosed) return;
    if (written_ == output_.size()) {
      written_ = 0;
      output_ = std::exchange(pending_, "");
      if (output_.empty()) return OnAllWritten();
    }
    writing_ = true;
    if (state_ == State::kAnswering) {
      SetDeadline(core_->options().stalled_client_timeout);
    }
    transport_.Write(asio::buffer(output_) + written_,
                     [self = shared_from_this()](error_code error, size_t n) {
                       self->writing_ = false;
                       if (error) return self->Close();
                       self->written_ += n;
                       self->WriteMore();
                     });
  }
  void OnAllWritten() {
    if (state_ != State::kAnswering) return;  // "100 Continue"
    ClearDeadline();
    if (!finished_) {
      if (streaming_ && listener_ != nullptr) listener_->OnWritten();
      return;
    }
    status_ = status_to_send_;
    CountAnswer();
    if (const auto listener = std::exchange(listener_, nullptr)) {
      listener->OnDone();
    }
    if (!keep_alive_) return Linger();
    input_.shrink_to_fit();
    ExpectRequest(core_->options().idle_timeout);
    Parse();
  }
  void Linger() {
    state_ = State::kLingering;
    error_code ignored;
    transport_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    SetDeadline(kLingerTime);
    Read();
  }

  void Close() {
    if (state_ == State::kClosed) return;
    if (state_ == State::kAnswering) CountAnswer();
    state_ = State::kClosed;
    closed_ = true;
    timer_.cancel();
    ReleaseBody();
    error_code ignored;
    transport_.socket().close(ignored);
    core_->Remove(this);
    if (const auto listener = std::exchange(listener_, nullptr)) {
      listener->OnDone();
    }
  }

  const std::shared_ptr<Core> core_;
  const tcp::socket::executor_type strand_;
  Transport transport_;
  asio::steady_timer timer_;
  State state_ = State::kHead;
  std::atomic<bool> closed_{false};

  // A read under way fills read_ alone, so that input_ may be used meanwhile.
  bool reading_ = false;
  std::array<char, kReadBytes> read_;
  boost::beast::flat_buffer input_;  // received, and not parsed yet
  std::optional<http::request_parser<http::string_body>> parser_;
  int64_t body_bytes_ = 0;  // counted by the core
  int64_t lingered_ = 0;
  HttpRequest request_;
  std::string path_;
  std::optional<Clock::time_point> asked_;  // not counted as answered yet
  int status_ = 0;
  int status_to_send_ = 0;

  int version_ = 11;  // of the request
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool streaming_ = false;
  bool finished_ = false;  // nothing comes after what is in the buffers
  std::shared_ptr<HttpListener> listener_;
  bool writing_ = false;
  size_t written_ = 0;   // bytes of output_
  std::string output_;   // being written
  std::string pending_;  // comes after it
};

absl::StatusOr<int> HttpServer::Core::Listen(const HttpServerOptions& options,
                                             HttpHandler* handler) {
  options_ = options;
  handler_ = handler;
  const auto unavailable = [&](const error_code& error) {
    return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ",
                                               options.host, ":", options.port,
                                               ": ", error.message()));
  };
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  tcp::resolver resolver(io_);
  const auto addresses = resolver.resolve(host, absl::StrCat(options.port),
                                          tcp::resolver::passive, error);
  if (error) return unavailable(error);
  const tcp::endpoint endpoint = addresses.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  // For what lingers of an earlier process; two servers do not share a port.
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::socket::max_listen_connections, error);
  if (error) return unavailable(error);
  const int port = acceptor_.local_endpoint(error).port();
  if (error) return unavailable(error);
  work_.emplace(io_.get_executor());
  asio::post(accepting_, [this] { Accept(); });
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { io_.run(); });
  }
  return port;
}

void HttpServer::Core::TakeNewTls() {
  std::shared_ptr<SSL_CTX> now = options_.tls->Context();
  if (now == tls_files_) return;
  tls_files_ = std::move(now);
  SSL_CTX_up_ref(tls_files_.get());  // the other owner frees it, too
  tls_ = std::make_shared<asio::ssl::context>(tls_files_.get());
}

void HttpServer::Core::Accept() {
  // The thread that accepts gives each connection a strand of its own.
  acceptor_.async_accept(asio::make_strand(io_),
                         [this](error_code error, tcp::socket socket) {
                           OnAccept(error, std::move(socket));
                         });
}

void HttpServer::Core::OnAccept(error_code error, tcp::socket socket) {
  if (!acceptor_.is_open()) return;
  if (error) {  // too many open files, say
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code stopped) {
      if (!stopped) Accept();
    });
    return;
  }
  if (options_.tls != nullptr) TakeNewTls();
  auto connection =
      std::make_shared<Connection>(shared_from_this(), std::move(socket), tls_);
  bool take = false;
  {
    MutexLock lock(&mu_);
    take = !stopped_ && count_.load() < options_.max_connections + kMaxRefusing;
    if (take) open_.emplace(connection.get(), connection);
  }
  if (take && count_.fetch_add(1) < options_.max_connections) {
    connection->Start();
  } else if (take) {
    connection->StartRefused();
  }
  Accept();
}

void HttpServer::Core::Remove(Connection* connection) {
  MutexLock lock(&mu_);
  if (open_.erase(connection) == 0) return;
  count_.fetch_sub(1);
}

void HttpServer::Core::Stop() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    for (const auto& [unused, weak] : open_) {
      if (const auto connection = weak.lock()) connection->PostClose();
    }
  }
  asio::post(accepting_, [this] {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  });
  // The threads end when what the connections had under way is over.
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
}

HttpServer::HttpServer() : core_(std::make_shared<Core>()) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HttpServerOptions& options, HttpHandler* handler) {
  auto server = std::unique_ptr<HttpServer>(new HttpServer);
  RECURVE_ASSIGN_OR_RETURN(server->port_,
                           server->core_->Listen(options, handler));
  return server;
}

HttpServer::~HttpServer() { Stop(); }

int64_t HttpServer::connections() const { return core_->connections(); }
void HttpServer::Drain() { core_->Drain(); }
void HttpServer::Stop() { core_->Stop(); }

}  // namespace recurve
