// What the frames of a client do to its calls: heads, messages, resets.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nghttp2/nghttp2.h"
#include "server/grpc/connection.h"
#include "server/grpc/wire.h"

namespace recurve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Window of a known client for a call with a message that does not fit the
// initial one.
constexpr int32_t kLargeMessageWindow = 1 << 20;
// Decompressed size of a head: one compressed byte may stand for 4 KiB.
constexpr size_t kMaxDecodedHeadBytes = 128 << 10;
constexpr size_t kResetBytes = 13;  // size of an RST_STREAM frame
constexpr int64_t kFrameHeadBytes = 9;

}  // namespace

bool GrpcConnection::OnBeginFrame(uint8_t type, uint8_t flags, size_t length,
                                  int32_t stream) {
  const Clock::time_point now = heard_;
  spoken_ = true;
  if (offence_) return false;  // found at the end of the previous frame
  frame_end_ += kFrameHeadBytes + static_cast<int64_t>(length);
  if (type == NGHTTP2_HEADERS || type == NGHTTP2_CONTINUATION) {
    if (type == NGHTTP2_HEADERS) {
      head_begun_ = now;
      head_frame_bytes_ = 0;
      Arm(now + options().head_timeout);
      // It opens no stream, but is parsed to its end.
      if (stream <= session_.last_stream() && Find(stream) == nullptr) {
        Charge(guard_.OnUselessCall(now));
      }
    }
    head_frame_bytes_ += static_cast<int64_t>(length);
    head_goes_on_ = (flags & NGHTTP2_FLAG_END_HEADERS) == 0;
  } else if (type == NGHTTP2_PING && (flags & NGHTTP2_FLAG_ACK) != 0 &&
             pinged_) {
    pinged_.reset();
    return true;
  } else if (type == NGHTTP2_RST_STREAM && Find(stream) != nullptr) {
    guard_.OnAccounted(kResetBytes);
    return true;  // checked by OnReset
  }
  Charge(guard_.OnFrame(type, flags, length, now));
  return !offence_;
}

bool GrpcConnection::OnBeginCall(int32_t stream) {
  if (shutting_down_) {
    session_.Reset(stream, NGHTTP2_REFUSED_STREAM);
    return true;
  }
  if (static_cast<int64_t>(calls_.size()) >= options().max_streams) {
    session_.Reset(stream, NGHTTP2_REFUSED_STREAM);
    Charge(guard_.OnUselessCall(heard_));
    return !offence_;
  }
  if (calls_.empty()) Arm(heard_ + CheckInterval());
  const auto call = std::make_shared<GrpcCall>(
      shared_from_this(), stream,
      static_cast<size_t>(options().max_message_bytes));
  calls_.emplace(stream, call);
  UpdateIdle();
  Count(*call);
  return true;
}

bool GrpcConnection::OnHeader(int32_t stream, absl::string_view name,
                              absl::string_view value) {
  GrpcCall* const call = Find(stream);
  if (call == nullptr || call->finishing) return true;
  call->AddHeader(name, value,
                  static_cast<size_t>(options().max_metadata_bytes));
  if (call->head_bytes() <= kMaxDecodedHeadBytes) return true;
  offence_ = Offence::kHeadSize;
  return false;
}

void GrpcConnection::OnHeadDone(int32_t stream, bool end_stream) {
  const auto it = calls_.find(stream);
  if (it == calls_.end()) return;
  useful_ = heard_;
  StartCall(it->second, end_stream);
  // The client may have become known by this very call.
  if (!known_) Charge(guard_.OnUselessCall(heard_));
}

void GrpcConnection::StartCall(const CallPtr& call, bool end_stream) {
  if (end_stream) call->SetHalfClosed();
  int http_status = 200;
  const absl::Status status = call->CheckHead(
      static_cast<size_t>(options().max_metadata_bytes), &http_status);
  if (!status.ok()) return Refuse(call, status, http_status);
  const auto method = connections_->methods().find(call->head().method);
  if (method == connections_->methods().end()) {
    return Refuse(
        call, absl::UnimplementedError("this server has no such method"), 200);
  }
  if (const auto deadline = call->head().deadline) {
    auto timer = std::make_unique<asio::steady_timer>(strand_);
    timer->expires_at(*deadline);
    timer->async_wait([self = shared_from_this(), call](error_code stopped) {
      if (!stopped) self->OnDeadline(call);
    });
    deadlines_.emplace(call->id(), std::move(timer));
  }
  call->SetListener(method->second(call->head(), call));
  call->DropHead();
  // The call may make the client known. The bytes read with it may contain more
  // calls than an unknown client may make.
  if (!known_) TakeActions();
}

void GrpcConnection::Refuse(const CallPtr& call, const absl::Status& status,
                            int http_status) {
  if (known_) Charge(guard_.OnUselessCall(heard_));
  call->DropHead();
  if (http_status == 200) return FinishCall(*call, status, {});
  call->finishing = call->status_sent = true;
  call->IgnoreInput();
  session_.SubmitHead(
      call->id(),
      {{":status", absl::StrCat(http_status)},
       {"grpc-status", absl::StrCat(static_cast<int>(status.code()))},
       {"grpc-message", PercentEncoded(status.message())}},
      /*with_body=*/false);
}

void GrpcConnection::OnData(int32_t stream, absl::string_view bytes) {
  session_.ConsumeConnection(bytes.size());
  const auto it = calls_.find(stream);
  if (it == calls_.end()) return;
  const CallPtr call = it->second;
  // Data of a known client may follow the head of a refused call; its window
  // bounds the amount.
  if (known_ || !call->finishing) guard_.OnAccounted(bytes.size());
  call->Receive(bytes);
  call->unconsumed += static_cast<int64_t>(bytes.size());
  Deliver(call);
  Count(*call);
}

void GrpcConnection::OnEndStream(int32_t stream) {
  const auto it = calls_.find(stream);
  if (it == calls_.end()) return;
  const CallPtr call = it->second;
  call->SetHalfClosed();
  call->DropHead();  // the trailers
  Deliver(call);
  Count(*call);
}

void GrpcConnection::Deliver(const CallPtr& call) {
  if (call->finishing) return;
  if (const absl::Status status = call->Deliver(); !status.ok()) {
    call->End(absl::CancelledError(status.message()));
    FinishCall(*call, status, {});
  }
  GiveWindow(*call);
}

// Returns window while the call waits for input.
void GrpcConnection::GiveWindow(GrpcCall& call) {
  if (!call.wants_message() || call.unconsumed == 0) return;
  if (known_ && call.window < kLargeMessageWindow &&
      call.WantsMoreThan(static_cast<size_t>(call.window))) {
    call.window = kLargeMessageWindow;
    session_.SetWindow(call.id(), call.window);
  }
  session_.ConsumeStream(
      call.id(), static_cast<size_t>(std::exchange(call.unconsumed, 0)));
}

bool GrpcConnection::OnReset(int32_t stream) {
  GrpcCall* const call = Find(stream);
  if (call == nullptr) return true;
  call->reset = true;
  // A call whose status is in transit has done work.
  Charge(guard_.OnReset(call->accepted || call->finishing, heard_));
  return !offence_;
}

bool GrpcConnection::OnInvalid() {
  Charge(guard_.OnUselessCall(heard_));
  return !offence_;
}

void GrpcConnection::OnStreamClosed(int32_t stream) {
  const auto it = calls_.find(stream);
  if (it == calls_.end()) return;
  const CallPtr call = it->second;
  calls_.erase(it);
  UpdateIdle();
  deadlines_.erase(stream);
  useful_ = Clock::now();
  held_bytes_ -= std::exchange(call->counted, 0);
  // The server ended it, and more of its message may be in transit.
  if (known_ && !call->reset) {
    guard_.OnUnwanted(session_.ReceivableBytes(stream));
  }
  call->End(call->status_sent
                ? absl::OkStatus()
                : absl::CancelledError("the client cancelled the call"));
  connections_->received().Update(call, 0);
}

}  // namespace recurve
