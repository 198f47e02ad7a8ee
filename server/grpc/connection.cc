#include "server/grpc/connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include "absl/strings/str_cat.h"
#include "nghttp2/nghttp2.h"
#include "server/grpc/wire.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// Bytes written at a time. More output waits in the calls, where it is bounded,
// and input is not read from a client that does not accept output.
constexpr size_t kMaxOutputBytes = 64 << 10;
// Window of a known client, for all calls together.
constexpr int32_t kConnectionWindow = 1 << 20;

std::string PeerOf(const tcp::socket& socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return "a client that has left";
  return absl::StrCat(peer.address().to_string(), " port ", peer.port());
}

// The system's timeout for a client that acknowledges nothing or has no receive
// window. Longer than this server's own timeouts, which it must not cut short.
int GoneMilliseconds(const GrpcServerOptions& options) {
  constexpr milliseconds kMost{std::chrono::hours(24)};
  return static_cast<int>(std::min(kMost, options.stalled_client_timeout +
                                              options.keepalive_timeout)
                              .count());
}

Http2Session::Settings SettingsFor(const GrpcServerOptions& options) {
  return {static_cast<uint32_t>(options.max_streams),
          static_cast<uint32_t>(options.max_metadata_bytes)};
}

}  // namespace

GrpcConnection::GrpcConnection(std::shared_ptr<GrpcConnections> connections,
                               tcp::socket socket,
                               std::shared_ptr<asio::ssl::context> tls)
    : connections_(std::move(connections)),
      strand_(socket.get_executor()),
      transport_(std::move(socket), std::move(tls)),
      timer_(strand_),
      session_(SettingsFor(connections_->options()), this),
      guard_(connections_->options().max_streams),
      share_(connections_->options().strangers, StrangerBytes::Port::kGrpc),
      begun_(Clock::now()),
      heard_(begun_),
      useful_(begun_),
      taken_(begun_) {}

bool GrpcConnection::OnStrand() const {
  return strand_.target<asio::strand<asio::io_context::executor_type>>()
      ->running_in_this_thread();
}

template <typename F>
void GrpcConnection::Post(F f) {
  // It could not run after the threads have ended; all connections are closed
  // by then.
  if (closed_.load()) return;
  asio::post(strand_, [self = shared_from_this(), f = std::move(f)] { f(); });
}

void GrpcConnection::Start() {
  Post([this] {
    if (state_ != State::kHandshake) return;  // closed before it began
    error_code ignored;
    transport_.socket().set_option(tcp::no_delay(true), ignored);
    const int gone_ms = GoneMilliseconds(options());
    setsockopt(transport_.socket().native_handle(), IPPROTO_TCP,
               TCP_USER_TIMEOUT, &gone_ms, sizeof(gone_ms));
    peer_ = PeerOf(transport_.socket());
    if (!CheckMemory()) return;
    UpdateIdle();
    Arm(begun_ + options().handshake_timeout);
    if (transport_.secure()) {
      transport_.Handshake([self = shared_from_this()](error_code error) {
        if (self->state_ != State::kHandshake) return;
        if (error) return self->Close(absl::OkStatus());
        self->state_ = State::kOpen;
        if (self->options().tls_clients_are_known) self->SetKnown();
        self->Flush();
        self->Read();
      });
      return;
    }
    state_ = State::kOpen;
    Flush();  // the server's SETTINGS
    Read();
  });
}

void GrpcConnection::PostShutdown() {
  Post([this] {
    if (state_ == State::kHandshake) return Close(absl::OkStatus());
    if (state_ != State::kOpen) return;
    shutting_down_ = true;
    session_.ShutDown("the server shuts down");
    Flush();
    EndWhenIdle();
  });
}

void GrpcConnection::PostDisplace() {
  Post([this] {
    if (known_ || displaced_) return;
    if (state_ == State::kHandshake || state_ == State::kOpen) {
      connections_->OnDisplaced();
    }
    if (state_ == State::kHandshake) return Close(absl::OkStatus());
    displaced_ = true;
    if (state_ == State::kOpen) {
      EndWith(NGHTTP2_NO_ERROR, "idle, and there is no room for others");
    } else if (state_ == State::kEnding) {
      Close(absl::OkStatus());
    }
  });
}

void GrpcConnection::UpdateIdle() {
  if (known_) return;
  const bool idle =
      std::all_of(calls_.begin(), calls_.end(),
                  [](const auto& call) { return call.second->rests; });
  if (!idle) return share_.SetBusy();
  share_.SetIdle([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->PostDisplace();
  });
}

void GrpcConnection::PostClose() {
  Post([this] { Close(absl::UnavailableError("the server shuts down")); });
}

// --- Actions of services ---

void GrpcConnection::Enqueue(CallAction action) {
  const bool on_strand = OnStrand();
  // For a method that authenticates by the head: frames received with the head
  // then count as a known client's.
  if (on_strand && action.kind == CallAction::Kind::kTrust) return SetKnown();
  MutexLock lock(&mu_);
  // The action would keep its call alive, which keeps this alive.
  if (actions_closed_) return;
  actions_.push_back(std::move(action));
  // Code on the strand executes the actions at its end.
  if (on_strand || std::exchange(actions_posted_, true)) return;
  // Under the lock, so that Close, after which the threads may end, comes
  // later.
  Post([this] {
    {
      MutexLock lock(&mu_);
      actions_posted_ = false;
    }
    TakeActions();
    Flush();
  });
}

void GrpcConnection::TakeActions() {
  std::vector<CallAction> actions;
  while (true) {
    {
      MutexLock lock(&mu_);
      if (actions_.empty()) return;
      actions.swap(actions_);
    }
    for (CallAction& action : actions) Carry(action);
    actions.clear();
  }
}

void GrpcConnection::Carry(CallAction& action) {
  GrpcCall& call = *action.call;
  // The stream is closed: no answer can be sent.
  if (Find(call.id()) != &call) return;
  switch (action.kind) {
    case CallAction::Kind::kRead:
      call.WantMessage(action.within);
      Deliver(action.call);
      break;
    case CallAction::Kind::kHead:
      if (!call.finishing) SubmitHead(call, std::move(action.metadata));
      break;
    case CallAction::Kind::kWrite:
      if (call.finishing) break;
      SubmitHead(call, {});
      call.SetOutput(std::move(action.message));
      session_.Resume(call.id());
      break;
    case CallAction::Kind::kFinish:
      FinishCall(call, action.status, std::move(action.metadata));
      break;
    case CallAction::Kind::kBreak:
      if (!call.finishing) BreakCall(action.call, action.status);
      break;
    case CallAction::Kind::kEvict:
      if (call.received_bytes() > 0) BreakCall(action.call, action.status);
      break;
    case CallAction::Kind::kTrust:
      SetKnown();
      break;
    case CallAction::Kind::kAccept:
      call.accepted = true;
      break;
    case CallAction::Kind::kRest:
      call.rests = true;
      UpdateIdle();
      break;
  }
  Count(call);
}

void GrpcConnection::SubmitHead(GrpcCall& call, RpcMetadata metadata) {
  if (std::exchange(call.head_sent, true)) return;
  session_.SubmitHead(call.id(), WithResponseHead(std::move(metadata)),
                      /*with_body=*/true);
}

void GrpcConnection::FinishCall(GrpcCall& call, const absl::Status& status,
                                RpcMetadata trailers) {
  if (call.finishing) return;
  call.finishing = true;
  // A known client that guesses keys; every call of an unknown one is charged.
  if (known_ && absl::IsUnauthenticated(status)) {
    Charge(guard_.OnUselessCall(heard_));
  }
  call.IgnoreInput();
  call.trailers = StatusTrailers(status, std::move(trailers));
  if (!call.has_output()) SubmitStatus(call);
}

void GrpcConnection::SubmitStatus(GrpcCall& call) {
  if (std::exchange(call.status_sent, true)) return;
  if (call.head_sent) {
    session_.SubmitTrailers(call.id(), call.trailers);
    return;
  }
  session_.SubmitHead(call.id(), WithResponseHead(call.trailers),
                      /*with_body=*/false);
}

void GrpcConnection::BreakCall(const CallPtr& call,
                               const absl::Status& status) {
  session_.Reset(call->id(), absl::IsResourceExhausted(status)
                                 ? NGHTTP2_ENHANCE_YOUR_CALM
                                 : NGHTTP2_CANCEL);
  call->finishing = true;
  call->DropOutput();
  call->End(status);
}

void GrpcConnection::OnDeadline(const CallPtr& call) {
  if (Find(call->id()) != call.get()) return;
  const absl::Status status =
      absl::DeadlineExceededError("the deadline of the call passed");
  if (call->output_begun() || call->finishing) {
    BreakCall(call, status);
  } else {
    call->DropOutput();
    call->End(status);
    FinishCall(*call, status, {});
  }
  Count(*call);
  TakeActions();
  Flush();
}

// --- Input ---

void GrpcConnection::Read() {
  if (reading_ || (state_ != State::kOpen && !lingers_)) return;
  // Output that the input would cause could not be written.
  if (writing_ && output_.size() >= kMaxOutputBytes) return;
  reading_ = true;
  transport_.Read(asio::buffer(read_),
                  [self = shared_from_this()](error_code error, size_t bytes) {
                    self->reading_ = false;
                    if (self->state_ == State::kEnding && !self->lingers_) {
                      return;  // it is closed by a timeout
                    }
                    if (error) return self->Close(absl::OkStatus());
                    if (self->state_ == State::kOpen)
                      return self->OnRead(bytes);
                    self->Read();
                  });
}

void GrpcConnection::OnRead(size_t bytes) {
  heard_ = Clock::now();
  received_ += static_cast<int64_t>(bytes);
  const Http2Session::Result result =
      session_.Receive(absl::string_view(read_.data(), bytes));
  if (state_ != State::kOpen) return;
  switch (result) {
    case Http2Session::Result::kOk:
      Charge(guard_.OnReceived(bytes, heard_));
      if (offence_) return EndFor(*offence_);
      break;
    case Http2Session::Result::kStopped:
      return EndFor(offence_.value_or(Offence::kProtocol));
    case Http2Session::Result::kFlooded:
      return EndFor(Offence::kControlFrames);
    case Http2Session::Result::kMalformed:
      return EndFor(Offence::kProtocol);
  }
  if (head_begun_ && !head_goes_on_ && received_ >= frame_end_) {
    head_begun_.reset();
  }
  TakeActions();
  Flush();
  if (state_ != State::kOpen || !CheckMemory()) return;
  EndWhenIdle();
  Read();
}

GrpcCall* GrpcConnection::Find(int32_t stream) {
  const auto it = calls_.find(stream);
  return it == calls_.end() ? nullptr : it->second.get();
}

void GrpcConnection::Charge(std::optional<Offence> offence) {
  if (!offence_) offence_ = offence;
}

void GrpcConnection::SetKnown() {
  if (std::exchange(known_, true)) return;
  guard_.SetKnown();
  share_.Release();
  session_.SetWindow(0, kConnectionWindow);
}

void GrpcConnection::Count(GrpcCall& call) {
  const auto it = calls_.find(call.id());
  if (it == calls_.end()) return;
  const int64_t now = call.held_bytes();
  held_bytes_ += now - std::exchange(call.counted, now);
  connections_->received().Update(it->second, call.received_bytes());
}

bool GrpcConnection::CheckMemory() {
  if (known_) return true;
  const int64_t base =
      transport_.secure() ? kTlsConnectionBytes : kPlainConnectionBytes;
  // The library may hold each byte of a head twice.
  const int64_t head = head_begun_ ? 2 * head_frame_bytes_ : 0;
  if (share_.Set(base + held_bytes_ + head +
                 static_cast<int64_t>(output_.capacity()))) {
    return true;
  }
  EndFor(Offence::kMemory);
  return false;
}

// --- Output ---

size_t GrpcConnection::Pack(int32_t stream, uint8_t* buffer, size_t max,
                            bool* more) {
  *more = true;
  const auto it = calls_.find(stream);
  if (it == calls_.end()) return 0;
  const CallPtr call = it->second;
  const size_t count = call->Pack(buffer, max, Clock::now());
  if (count > 0 && !std::exchange(call->waits_for_socket, true)) {
    packed_.push_back(call);
  }
  if (call->finishing && !call->has_output()) {
    *more = false;
    SubmitStatus(*call);
  }
  return count;
}

void GrpcConnection::OnSentFrame(int32_t stream, bool ends_stream) {
  guard_.OnSent();
  // Further input on the stream is unwanted.
  if (ends_stream && session_.is_remote_open(stream)) {
    session_.Reset(stream, NGHTTP2_NO_ERROR);
  }
}

void GrpcConnection::Flush() {
  if (writing_ || (state_ != State::kOpen && state_ != State::kEnding)) return;
  if (state_ == State::kOpen && !session_.Produce(kMaxOutputBytes, &output_)) {
    return Close(absl::OkStatus());
  }
  if (state_ == State::kEnding) output_ += std::exchange(farewell_, "");
  if (output_.empty()) return;
  writing_ = true;
  untaken_bytes_ = UntakenBytes();
  taken_ = Clock::now();
  if (state_ == State::kOpen) Arm(taken_ + CheckInterval());
  transport_.Write(asio::buffer(output_) + written_,
                   [self = shared_from_this()](error_code error, size_t bytes) {
                     self->writing_ = false;
                     if (self->state_ == State::kClosed) return;
                     if (error) return self->Close(absl::OkStatus());
                     self->OnFlushed(bytes);
                   });
}

void GrpcConnection::OnFlushed(size_t bytes) {
  written_ += bytes;
  if (written_ == output_.size()) {
    written_ = 0;
    output_.clear();
    if (displaced_ && farewell_.empty()) return Close(absl::OkStatus());
    if (calls_.empty()) output_.shrink_to_fit();
    std::vector<CallPtr> sent;
    sent.swap(packed_);
    for (const CallPtr& call : sent) {
      call->waits_for_socket = false;
      call->OnSent();
    }
    TakeActions();
    // Before more is written, or a client that accepts everything immediately
    // would never be read.
    Read();
  }
  Flush();
  EndWhenIdle();
  Read();
}

}  // namespace recurve
