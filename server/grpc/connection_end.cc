// How a connection ends, and its periodic checks.

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "nghttp2/nghttp2.h"
#include "server/grpc/connection.h"

namespace recurve {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// Interval of the checks of calls and pending output.
constexpr milliseconds kCheckInterval{1'000};
// Time for a client to read the last frames before the socket is closed.
constexpr milliseconds kLingerTime{1'000};
// The same for a displaced connection, whose place another one awaits.
constexpr milliseconds kDisplacedPenalty{50};

// The text in the GOAWAY and in the operator's log.
std::string ReasonOf(Offence offence, const GrpcServerOptions& options) {
  switch (offence) {
    case Offence::kControlFrames:
      return "too many frames that carry no data";
    case Offence::kPings:
      return "too_many_pings";  // gRPC's clients look for this text
    case Offence::kResets:
      return "too many calls were reset before they were accepted";
    case Offence::kHeadSize:
      return absl::StrCat("the head of a call has more than ",
                          FrameGuard::kMaxHeadBytes, " bytes");
    case Offence::kCalls:
      return "too many calls that are not allowed or not well formed";
    case Offence::kWaste:
      return "too many bytes that belong to no call";
    case Offence::kMemory:
      return "an unauthenticated client holds more memory than allowed "
             "(--max-stranger-connection-bytes, --max-stranger-bytes)";
    case Offence::kTimeout:
      return absl::StrCat(
          "the TLS handshake, the connection preface or the head of a call did "
          "not come within ",
          std::max(options.handshake_timeout, options.head_timeout).count(),
          " ms");
    case Offence::kUnread:
      return absl::StrCat("the client took nothing for ",
                          options.stalled_client_timeout.count(), " ms");
    case Offence::kProtocol:
      return "the input is not well-formed HTTP/2";
  }
  return "";
}

}  // namespace

void GrpcConnection::EndFor(Offence offence, absl::string_view reason) {
  if (state_ == State::kEnding || state_ == State::kClosed) return;
  connections_->OnOffence(peer_, offence);
  if (state_ == State::kHandshake) return Close(absl::OkStatus());
  EndWith(offence == Offence::kProtocol ? NGHTTP2_PROTOCOL_ERROR
                                        : NGHTTP2_ENHANCE_YOUR_CALM,
          reason.empty() ? ReasonOf(offence, options()) : std::string(reason));
}

void GrpcConnection::EndWith(uint32_t http2_error, absl::string_view reason) {
  if (state_ != State::kOpen) return;
  state_ = State::kEnding;
  // output_ holds whole frames; unproduced output is lost. A write of output_
  // may be in progress, so it must stay in place. For the calls of a harmless
  // connection the end is UNAVAILABLE.
  const uint32_t reset = http2_error == NGHTTP2_NO_ERROR
                             ? static_cast<uint32_t>(NGHTTP2_REFUSED_STREAM)
                             : http2_error;
  for (const auto& [stream, call] : calls_) {
    farewell_ += Http2Session::ResetFrame(stream, reset);
  }
  farewell_ +=
      Http2Session::GoAway(session_.last_stream(), http2_error, reason);
  EndCalls(absl::CancelledError(reason));
  timer_at_ = Clock::time_point::max();
  Arm(Clock::now() + (displaced_ ? kDisplacedPenalty : Penalty()));
  Flush();
}

// Randomised, or floods from many connections would stay synchronised.
milliseconds GrpcConnection::Penalty() const {
  thread_local std::minstd_rand random(std::random_device{}());
  const double factor =
      std::uniform_real_distribution<double>(0.75, 1.25)(random);
  return std::chrono::duration_cast<milliseconds>(factor * options().penalty);
}

void GrpcConnection::EndCalls(const absl::Status& status) {
  const auto calls = std::exchange(calls_, {});
  deadlines_.clear();
  for (const auto& [stream, call] : calls) {
    call->End(status);
    connections_->received().Update(call, 0);
  }
  packed_.clear();
  held_bytes_ = 0;
}

// The connection's last frames are written, or in output_: what remains is to
// let the client read them.
void GrpcConnection::EndWhenIdle() {
  if (state_ != State::kOpen || writing_ || session_.wants_write()) return;
  if (session_.failed()) {  // the library's GOAWAY gave the reason
    connections_->OnOffence(peer_, Offence::kProtocol);
  } else if (session_.done() || (shutting_down_ && calls_.empty())) {
    lingers_ = true;
  } else {
    return;
  }
  state_ = State::kEnding;
  EndCalls(absl::CancelledError("the connection ends"));
  timer_at_ = Clock::time_point::max();
  Arm(Clock::now() + (lingers_ ? kLingerTime : Penalty()));
  if (!lingers_) return;
  error_code ignored;
  transport_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  Read();
}

void GrpcConnection::Close(const absl::Status& status) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  closed_ = true;
  timer_.cancel();
  error_code ignored;
  transport_.socket().close(ignored);
  EndCalls(status.ok() ? absl::CancelledError("the client went away") : status);
  share_.Release();
  std::vector<CallAction> actions;  // destroyed without the lock
  {
    MutexLock lock(&mu_);
    actions_closed_ = true;
    actions.swap(actions_);
  }
  connections_->Remove(this);
}

// --- Time ---

int GrpcConnection::UntakenBytes() {
  int bytes = 0;
  const int fd = transport_.socket().native_handle();
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : -1;
}

milliseconds GrpcConnection::CheckInterval() const {
  return std::min({kCheckInterval, options().stalled_client_timeout / 4,
                   options().message_timeout / 4});
}

void GrpcConnection::Arm(Clock::time_point when) {
  if (when >= timer_at_) return;
  timer_at_ = when;
  timer_.expires_at(when);
  timer_.async_wait([self = shared_from_this(), when](error_code stopped) {
    if (!stopped && self->timer_at_ == when) self->OnTimer();
  });
}

void GrpcConnection::OnTimer() {
  timer_at_ = Clock::time_point::max();
  if (state_ == State::kEnding) return Close(absl::OkStatus());
  if (state_ == State::kClosed) return;
  const Clock::time_point now = Clock::now();
  if (!CheckTimes(now)) return;
  TakeActions();
  Flush();
  if (state_ == State::kOpen || state_ == State::kHandshake) {
    Arm(NextCheck(now));
  }
}

GrpcConnection::Clock::time_point GrpcConnection::NextCheck(
    Clock::time_point now) const {
  if (!spoken_) return begun_ + options().handshake_timeout;
  if (writing_ || !calls_.empty()) return now + CheckInterval();
  Clock::time_point next = pinged_ ? *pinged_ + options().keepalive_timeout
                                   : heard_ + options().keepalive_interval;
  if (head_begun_) next = std::min(next, *head_begun_ + options().head_timeout);
  if (!known_) next = std::min(next, useful_ + options().idle_timeout);
  return std::max(next, now + milliseconds(1));
}

bool GrpcConnection::CheckTimes(Clock::time_point now) {
  if (!spoken_) {
    if (now < begun_ + options().handshake_timeout) return true;
    EndFor(Offence::kTimeout);
    return false;
  }
  if (head_begun_ && now >= *head_begun_ + options().head_timeout) {
    EndFor(Offence::kTimeout);
    return false;
  }
  if (writing_) {
    // A write's completion is too coarse: Linux accepts more only when a third
    // of its buffer is free, which may take a slow reader minutes.
    const int untaken = UntakenBytes();
    if (untaken != untaken_bytes_) {
      untaken_bytes_ = untaken;
      taken_ = now;
    } else if (now - taken_ >= options().stalled_client_timeout) {
      connections_->OnOffence(peer_, Offence::kUnread);
      Close(
          absl::ResourceExhaustedError(ReasonOf(Offence::kUnread, options())));
      return false;
    }
  }
  if (!CheckCalls(now)) return false;
  if (!known_ && calls_.empty() && now >= useful_ + options().idle_timeout) {
    EndWith(NGHTTP2_NO_ERROR, "idle");
    return false;
  }
  // Any input is a sign of life. A client that is slow to read gets the ping
  // late; while output is pending, only its progress counts.
  if (pinged_ && (heard_ > *pinged_ || writing_)) pinged_.reset();
  if (writing_) return true;
  if (pinged_) {
    if (now < *pinged_ + options().keepalive_timeout) return true;
    Close(absl::OkStatus());
    return false;
  }
  if (now >= heard_ + options().keepalive_interval) {
    pinged_ = now;
    session_.Ping();
  }
  return true;
}

bool GrpcConnection::CheckCalls(Clock::time_point now) {
  std::vector<CallPtr> stalled;
  std::vector<CallPtr> late;
  for (const auto& [stream, call] : calls_) {
    if (call->has_output() &&
        now - call->progress() >= options().stalled_client_timeout) {
      stalled.push_back(call);
    } else if (call->IsLate(options().message_timeout, now)) {
      late.push_back(call);
    }
  }
  for (const CallPtr& call : stalled) {
    call->DropOutput();
    session_.Reset(call->id(), NGHTTP2_CANCEL);
    call->finishing = true;
    call->End(
        absl::ResourceExhaustedError(ReasonOf(Offence::kUnread, options())));
  }
  for (const CallPtr& call : late) {
    const absl::Status status = absl::DeadlineExceededError(
        "the client's message did not come in time");
    call->End(status);
    FinishCall(*call, status, {});
    Count(*call);
  }
  return true;
}

}  // namespace recurve
