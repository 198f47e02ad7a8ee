#include "server/http/http_session.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http/http_head.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// The system would buffer megabytes for a client that does not read; a backlog
// must be noticed, so that the client's sequences pause.
constexpr int kSendBufferBytes = 64 << 10;
// Bytes that a client may send ahead while its request is answered.
constexpr size_t kMaxAheadBytes = 16 << 10;
// After an answer that ends the connection, further input is read for this
// long, or the system would discard the answer.
constexpr std::chrono::milliseconds kLingerTime{2'000};
constexpr int64_t kMaxLingerBytes = 16 << 20;
// While an answer is written, the interval of checks whether the client accepts
// any of it: short enough for the engine, which has the same timeout, to be
// told in time.
std::chrono::milliseconds ReaderInterval(std::chrono::milliseconds timeout) {
  return std::min(timeout / 4, std::chrono::milliseconds(1'000));
}
// nginx's status for a client that left before its answer was whole.
constexpr int kClientGone = 499;

// Bytes that the peer has not acknowledged; -1: unknown.
int UntakenBytes(tcp::socket& socket) {
  int bytes = 0;
  return ioctl(socket.native_handle(), SIOCOUTQ, &bytes) == 0 ? bytes : -1;
}

}  // namespace

HttpSession::HttpSession(std::shared_ptr<HttpSessions> sessions,
                         tcp::socket socket,
                         std::shared_ptr<asio::ssl::context> tls)
    : sessions_(std::move(sessions)),
      strand_(socket.get_executor()),
      transport_(std::move(socket), std::move(tls)),
      timer_(strand_),
      known_(sessions_->options().strangers == nullptr),
      share_(sessions_->options().strangers, StrangerBytes::Port::kHttp) {}

template <typename F>
void HttpSession::Post(F f) {
  // It could not run after the threads have ended; all connections are closed
  // by then.
  if (closed_.load()) return;
  asio::post(strand_, [self = shared_from_this(), f = std::move(f)] { f(); });
}

void HttpSession::Start() {
  Post([this] {
    error_code ignored;
    transport_.socket().set_option(tcp::no_delay(true), ignored);
    transport_.socket().set_option(
        tcp::socket::send_buffer_size(kSendBufferBytes), ignored);
    if (!share_.Set(transport_.secure() ? kTlsConnectionBytes
                                        : kPlainConnectionBytes)) {
      return RefuseStranger();
    }
    ExpectRequest(sessions_->options().head_timeout);
    if (!transport_.secure()) return Read();
    SetDeadline(sessions_->options().handshake_timeout);
    transport_.Handshake([self = shared_from_this()](error_code error) {
      if (error) return self->Close();
      self->SetDeadline(self->sessions_->options().head_timeout);
      self->Read();
    });
  });
}

void HttpSession::StartRefused() {
  Post([this] {
    RefuseConnection(
        absl::StrCat("the server has ", sessions_->options().max_connections,
                     " connections, the limit of --max-http-connections; retry "
                     "later"));
  });
}

void HttpSession::RefuseStranger() {
  RefuseConnection(
      absl::StrCat("connections of unauthenticated clients hold ",
                   sessions_->options().strangers->max_total(),
                   " bytes, the limit of --max-stranger-bytes; retry later"));
}

void HttpSession::RefuseConnection(const std::string& message) {
  if (transport_.secure()) return Close();
  StartAnswer();
  HttpResponse response = HttpError(503, message);
  response.headers.emplace_back("Retry-After", "1");
  SendNow(response, /*keep_alive=*/false);
  Read();
}

void HttpSession::PostClose() {
  Post([this] { Close(); });
}

void HttpSession::PostDisplace() {
  Post([this] {
    if (!share_.counted() || state_ == State::kClosed) return;
    sessions_->options().on_displaced();
    Close();
  });
}

void HttpSession::Listen(std::shared_ptr<HttpListener> listener) {
  listener_ = std::move(listener);
}

void HttpSession::Send(HttpResponse response) {
  Post([this, response = std::move(response)] {
    if (state_ != State::kAnswering) return;
    SendNow(response, keep_alive_);
  });
}

void HttpSession::SendMade(std::function<HttpResponse()> make) {
  Post([this, make = std::move(make)] {
    if (state_ != State::kAnswering) return;
    SendNow(make(), keep_alive_);
  });
}

void HttpSession::Begin(HttpResponse head) {
  Post([this, head = std::move(head)] {
    if (state_ != State::kAnswering) return;
    keep_alive_ = keep_alive_ && version_ >= 11 && !sessions_->draining();
    streaming_ = true;
    ping_ = head.ping;
    status_to_send_ = head.status;
    pending_ += HeadOf(head, version_, keep_alive_, std::nullopt);
    AppendPiece(head.body);
    WriteMore();
  });
}

void HttpSession::Write(std::string piece) {
  Post([this, piece = std::move(piece)] {
    if (state_ != State::kAnswering) return;
    pinging_ = false;
    // Benchmark clients of vLLM strip each piece that arrives, and so glue a
    // ping to what follows: a second one, in one piece with it, ends the first.
    AppendPiece(std::exchange(pinged_, false) ? ping_ + piece : piece);
    WriteMore();
  });
}

void HttpSession::Finish() {
  Post([this] {
    if (state_ != State::kAnswering) return;
    if (version_ >= 11) pending_ += "0\r\n\r\n";
    finished_ = true;
    WriteMore();
  });
}

void HttpSession::Continue(std::function<void()> f) {
  Post([this, f = std::move(f)] {
    if (listener_ != nullptr) f();
  });
}

void HttpSession::Drop() {
  Post([this] { CutOff(); });
}

void HttpSession::SetDeadline(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait(
      [self = shared_from_this(), due = timer_.expiry()](error_code error) {
        if (!error && self->timer_.expiry() == due) self->OnDeadline();
      });
}

void HttpSession::ClearDeadline() {
  timer_.expires_at(Clock::time_point::max());
}

void HttpSession::OnDeadline() {
  const bool receiving =
      state_ == State::kBody ||
      (state_ == State::kHead && parser_ && parser_->got_some());
  if (receiving) {
    Refuse(HttpError(408, "the request did not come in time"));
  } else if (state_ == State::kAnswering) {
    writing_ ? CheckReader() : Ping();
  } else {
    Close();
  }
}

void HttpSession::WatchReader() {
  untaken_bytes_ = UntakenBytes(transport_.socket());
  taken_ = Clock::now();
  SetDeadline(ReaderInterval(sessions_->options().stalled_client_timeout));
}

void HttpSession::CheckReader() {
  // A write's completion is too coarse: Linux accepts more only when a third of
  // its buffer is free, which may take a slow reader minutes.
  if (UntakenBytes(transport_.socket()) != untaken_bytes_) {
    WatchReader();
    if (streaming_ && listener_ != nullptr) listener_->OnProgress();
    return;
  }
  const auto timeout = sessions_->options().stalled_client_timeout;
  if (Clock::now() - taken_ >= timeout) return CutOff();
  SetDeadline(ReaderInterval(timeout));
}

void HttpSession::ExpectRequest(std::chrono::milliseconds time) {
  state_ = State::kHead;
  parser_.emplace();
  parser_->header_limit(sessions_->options().max_head_bytes);
  parser_->body_limit(sessions_->options().max_body_bytes);
  request_ = HttpRequest();
  path_.clear();
  asked_.reset();
  head_bytes_ = 0;
  head_end_ = 0;
  head_only_ = streaming_ = finished_ = pinging_ = pinged_ = false;
  ping_.clear();
  version_ = 11;
  keep_alive_ = true;
  SetDeadline(time);
  share_.SetIdle([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->PostDisplace();
  });
}

void HttpSession::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (ended_) return Close();
  // The answer is in transit: later requests wait for its end.
  if (state_ == State::kAnswering && finished_ && !discards_ &&
      input_.size() >= kMaxAheadBytes) {
    return;
  }
  reading_ = true;
  transport_.Read(asio::buffer(read_),
                  [self = shared_from_this()](error_code error, size_t bytes) {
                    self->reading_ = false;
                    // The end of an answer is being written, and the client may
                    // have read it before it disconnected: the write's result
                    // decides.
                    if (error && self->state_ == State::kAnswering &&
                        self->finished_ && self->writing_) {
                      self->ended_ = true;
                      return;
                    }
                    if (error) return self->Close();
                    self->OnRead(bytes);
                  });
}

void HttpSession::OnRead(size_t bytes) {
  share_.SetBusy();
  if (state_ == State::kAnswering &&
      (discards_ || (!finished_ && input_.size() + bytes > kMaxAheadBytes))) {
    // Keeps reading to notice a disconnect; because input is now missing, the
    // connection ends after this answer.
    discards_ = true;
    keep_alive_ = false;
    input_.clear();
    lingered_ += static_cast<int64_t>(bytes);
    return lingered_ > kMaxLingerBytes ? Close() : Read();
  }
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
    case State::kLingering:  // begun before the answer's end was written
      lingered_ += static_cast<int64_t>(bytes);
      if (!transport_.secure()) Discard();
      return;
    case State::kClosed:
      return;
  }
}

void HttpSession::Parse() {
  while (state_ == State::kHead || state_ == State::kBody) {
    if (input_.size() == 0) return Read();
    if (!parser_->got_some()) SetDeadline(sessions_->options().head_timeout);
    error_code error;
    const asio::const_buffer data = input_.data();
    const size_t used = parser_->put(data, error);
    if (state_ == State::kHead &&
        Folds({static_cast<const char*>(data.data()), used}, &head_end_)) {
      return Refuse(HttpError(
          400,
          "a line of the head begins with a space or a tab, as if it went on "
          "from the line before; expected each header in one line"));
    }
    input_.consume(used);
    const bool more = error == http::error::need_more;
    // Beast limits the request line and the headers separately, and a chunk's
    // line and the trailers not at all.
    const size_t limit = sessions_->options().max_head_bytes;
    if (state_ == State::kHead) head_bytes_ += used;
    if (state_ == State::kHead &&
        head_bytes_ + (more ? input_.size() : 0) > limit) {
      error = http::error::header_limit;
    } else if (state_ == State::kBody && more && input_.size() > limit) {
      return Refuse(HttpError(
          400, absl::StrCat("a chunk's line or the trailers have more than ",
                            limit, " bytes")));
    } else if (more) {
      error = {};
    }
    if (error) return RefuseMalformed(error);
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

void HttpSession::OnHead() {
  state_ = State::kBody;
  SetDeadline(sessions_->options().body_timeout);
  const auto& message = parser_->get();
  version_ = static_cast<int>(message.version());
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  request_.method = std::string(View(message.method_string()));
  SetPath(View(message.target()));
  request_.path = path_;
  asked_ = Clock::now();
  request_.content_type = std::string(View(message[http::field::content_type]));
  request_.content_encoding =
      std::string(View(message[http::field::content_encoding]));
  request_.host = std::string(View(message[http::field::host]));
  request_.has_origin = message.count(http::field::origin) > 0;
  const auto [first, last] = message.equal_range(http::field::authorization);
  for (auto it = first; it != last; ++it) {
    request_.authorization.emplace_back(View(it->value()));
  }
  const auto [first_id, last_id] = message.equal_range(kRequestIdHeader);
  for (auto it = first_id; it != last_id; ++it) {
    request_.request_id.emplace_back(View(it->value()));
  }
  const auto [first_timeout, last_timeout] =
      message.equal_range(kExpectedTimeoutHeader);
  for (auto it = first_timeout; it != last_timeout; ++it) {
    request_.expected_timeout.emplace_back(View(it->value()));
  }
  for (const std::string& problem :
       {HostProblem(message, version_), BodyProblem(message, version_)}) {
    if (!problem.empty()) return Refuse(HttpError(400, problem));
  }
  if (auto refusal = sessions_->handler().CheckHead(&request_)) {
    return Refuse(*refusal);
  }
  if (request_.entitled) {
    known_ = true;
    share_.Release();
  }
  if (absl::EqualsIgnoreCase(View(message[http::field::expect]),
                             "100-continue") &&
      version_ >= 11) {
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
    WriteMore();
  }
}

void HttpSession::SetPath(absl::string_view target) {
  path_ = std::string(PathOf(target));
}

bool HttpSession::CountBody() {
  const int64_t now = static_cast<int64_t>(parser_->get().body().size());
  const int64_t difference = now - std::exchange(body_bytes_, now);
  if (sessions_->AddBodyBytes(difference)) return true;
  HttpResponse response = HttpError(
      503, absl::StrCat("the bodies that the server receives have ",
                        sessions_->options().max_bodies_bytes,
                        " bytes, the limit for all together; retry later"));
  response.headers.emplace_back("Retry-After", "1");
  Refuse(response);
  return false;
}

void HttpSession::ReleaseBody() {
  parser_.reset();
  sessions_->RemoveBodyBytes(std::exchange(body_bytes_, 0));
}

void HttpSession::StartAnswer() {
  state_ = State::kAnswering;
  status_ = kClientGone;  // until there is another
  if (!asked_) asked_ = Clock::now();
}

void HttpSession::CountAnswer() {
  const auto asked = std::exchange(asked_, std::nullopt);
  if (!asked) return;
  sessions_->handler().OnAnswered(
      path_, status_,
      std::chrono::duration<double>(Clock::now() - *asked).count());
}

void HttpSession::Dispatch() {
  StartAnswer();
  ClearDeadline();
  request_.body = std::move(parser_->get().body());
  sessions_->handler().Handle(std::move(request_), shared_from_this());
  ReleaseBody();
  Read();
}

void HttpSession::RefuseMalformed(error_code error) {
  const auto& options = sessions_->options();
  if (path_.empty()) SetPath(View(parser_->get().target()));
  if (error == http::error::header_limit) {
    Refuse(HttpError(431, absl::StrCat("the request line and its headers "
                                       "have more than ",
                                       options.max_head_bytes, " bytes")));
  } else if (error == http::error::body_limit) {
    Refuse(HttpError(413, absl::StrCat("the body has more than ",
                                       options.max_body_bytes, " bytes")));
  } else {
    Refuse(HttpError(400, "the request is not well-formed HTTP"));
  }
}

void HttpSession::Refuse(const HttpResponse& response) {
  StartAnswer();
  ReleaseBody();
  SendNow(response, /*keep_alive=*/false);
  Read();
}

void HttpSession::SendNow(const HttpResponse& response, bool keep_alive) {
  keep_alive_ = keep_alive && !sessions_->draining();
  pending_ += HeadOf(response, version_, keep_alive_, response.body.size());
  if (!head_only_) pending_ += response.body;
  status_to_send_ = response.status;
  finished_ = true;
  WriteMore();
}

void HttpSession::AppendPiece(const std::string& piece) {
  if (piece.empty()) return;
  if (version_ < 11) {
    pending_ += piece;
  } else {
    absl::StrAppend(&pending_, absl::Hex(piece.size()), "\r\n", piece, "\r\n");
  }
}

void HttpSession::WriteMore() {
  if (writing_ || state_ == State::kClosed) return;
  if (written_ == output_.size()) {
    written_ = 0;
    output_ = std::exchange(pending_, "");
    if (output_.empty()) return OnAllWritten();
  }
  writing_ = true;
  if (state_ == State::kAnswering) WatchReader();
  transport_.Write(asio::buffer(output_) + written_,
                   [self = shared_from_this()](error_code error, size_t n) {
                     self->writing_ = false;
                     if (error) return self->Close();
                     self->written_ += n;
                     if (self->written_ < self->output_.size() &&
                         self->streaming_ && self->listener_ != nullptr) {
                       self->listener_->OnProgress();
                     }
                     self->WriteMore();
                   });
}

void HttpSession::OnAllWritten() {
  if (state_ != State::kAnswering) return;  // "100 Continue"
  ClearDeadline();
  if (!finished_) {
    if (!streaming_) return;
    WaitToPing();
    const bool pinged = std::exchange(pinging_, false);
    if (!pinged && listener_ != nullptr) listener_->OnWritten();
    return;
  }
  status_ = status_to_send_;
  CountAnswer();
  if (const auto listener = std::exchange(listener_, nullptr)) {
    listener->OnDone(absl::OkStatus());
  }
  if (!keep_alive_) return Linger();
  if (ended_) return Close();  // requests sent ahead are not begun
  input_.shrink_to_fit();
  const HttpServerOptions& options = sessions_->options();
  ExpectRequest(
      known_ ? options.idle_timeout
             : std::min(options.idle_timeout, options.stranger_idle_timeout));
  Parse();
}

void HttpSession::WaitToPing() {
  const auto interval = sessions_->options().stream_ping;
  if (!ping_.empty() && interval.count() > 0) SetDeadline(interval);
}

void HttpSession::Ping() {
  pinging_ = pinged_ = true;
  AppendPiece(ping_);
  WriteMore();
}

void HttpSession::Linger() {
  state_ = State::kLingering;
  SetDeadline(kLingerTime);
  if (!transport_.secure()) return CloseSending();
  // Without a TLS close, an answer without a length would look truncated. The
  // client replies with its own; any other input is an error here, and is read
  // as without TLS.
  transport_.Shutdown([self = shared_from_this()](error_code error) {
    if (!error) return self->Close();
    self->CloseSending();
  });
}

void HttpSession::CloseSending() {
  if (state_ == State::kClosed) return;
  error_code ignored;
  transport_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  Discard();
}

void HttpSession::Discard() {
  if (state_ == State::kClosed || reading_) return;
  if (ended_ || lingered_ > kMaxLingerBytes) return Close();
  reading_ = true;
  // Raw bytes, even with TLS: they are discarded, and TLS is over.
  transport_.socket().async_read_some(
      asio::buffer(read_),
      [self = shared_from_this()](error_code error, size_t bytes) {
        self->reading_ = false;
        if (error) return self->Close();
        self->lingered_ += static_cast<int64_t>(bytes);
        self->Discard();
      });
}

void HttpSession::Close() {
  CloseWith(absl::CancelledError("the client went away"));
}

void HttpSession::CutOff() {
  CloseWith(absl::ResourceExhaustedError(absl::StrCat(
      "the client read nothing for ",
      sessions_->options().stalled_client_timeout.count(), " ms")));
}

void HttpSession::CloseWith(const absl::Status& status) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kAnswering) CountAnswer();
  state_ = State::kClosed;
  closed_ = true;
  timer_.cancel();
  share_.Release();
  ReleaseBody();
  error_code ignored;
  transport_.socket().close(ignored);
  sessions_->Remove(this);
  if (const auto listener = std::exchange(listener_, nullptr)) {
    listener->OnDone(status);
  }
}

}  // namespace recurve
