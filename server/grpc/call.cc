#include "server/grpc/call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/checkpoint/quote.h"
#include "server/grpc/connection.h"
#include "server/grpc/wire.h"

namespace recurve {
namespace {

// Added to an entry's name and value (RFC 9113, 10.5.1).
constexpr size_t kEntryBytes = 32;
// Memory of a call in addition to its buffers: this object, the stream of the
// HTTP/2 library, and the service's state.
constexpr int64_t kCallBytes = 4 << 10;

}  // namespace

GrpcCall::GrpcCall(std::shared_ptr<GrpcConnection> connection, int32_t id,
                   size_t max_message_bytes)
    : connection_(std::move(connection)), id_(id), reader_(max_message_bytes) {}

void GrpcCall::Post(CallAction action) {
  action.call = shared_from_this();
  connection_->Enqueue(std::move(action));
}

void GrpcCall::Read(std::chrono::milliseconds within) {
  CallAction action(CallAction::Kind::kRead);
  action.within = within;
  Post(std::move(action));
}

void GrpcCall::SendHead(RpcMetadata metadata) {
  CallAction action(CallAction::Kind::kHead);
  action.metadata = std::move(metadata);
  Post(std::move(action));
}

void GrpcCall::Write(const std::string& message) {
  CallAction action(CallAction::Kind::kWrite);
  action.message = WithMessagePrefix(message);
  Post(std::move(action));
}

void GrpcCall::Finish(absl::Status status, RpcMetadata trailers) {
  CallAction action(CallAction::Kind::kFinish);
  action.status = std::move(status);
  action.metadata = std::move(trailers);
  Post(std::move(action));
}

void GrpcCall::Break() {
  CallAction action(CallAction::Kind::kBreak);
  action.status = absl::CancelledError("the server ended the call");
  Post(std::move(action));
}

void GrpcCall::Evict() {
  CallAction action(CallAction::Kind::kEvict);
  action.status = absl::ResourceExhaustedError(
      "the messages that this server is receiving have reached their memory "
      "limit, and this call has held some for longest");
  Post(std::move(action));
}

void GrpcCall::Trust() { Post(CallAction(CallAction::Kind::kTrust)); }
void GrpcCall::Accept() { Post(CallAction(CallAction::Kind::kAccept)); }
void GrpcCall::Rest() { Post(CallAction(CallAction::Kind::kRest)); }

void GrpcCall::AddHeader(absl::string_view name, absl::string_view value,
                         size_t max_bytes) {
  head_bytes_ += name.size() + value.size() + kEntryBytes;
  if (head_bytes_ > max_bytes) return;
  if (name == ":path") {
    head_.method = std::string(value);
  } else if (name == ":method") {
    verb_ = std::string(value);
  } else if (name == "authorization") {
    head_.authorization.emplace_back(value);
  } else if (name == "content-type") {
    content_type_ = std::string(value);
  } else if (name == "grpc-encoding") {
    encoding_ = std::string(value);
  } else if (name == "grpc-timeout") {
    if (const auto timeout = ParseGrpcTimeout(value)) {
      head_.deadline = Clock::now() + *timeout;
    } else {
      bad_timeout_ = true;
    }
  }
}

absl::Status GrpcCall::CheckHead(size_t max_bytes, int* http_status) const {
  *http_status = 200;
  if (head_bytes_ > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the metadata of the call have ", head_bytes_,
        " bytes, where each entry counts ", kEntryBytes,
        " more than its name and value; this server takes at most ",
        max_bytes));
  }
  if (verb_ != "POST") {
    *http_status = 405;
    return absl::UnimplementedError("this port serves gRPC, which uses POST");
  }
  if (!IsGrpcContentType(content_type_)) {
    *http_status = 415;
    return absl::UnimplementedError(
        absl::StrCat("content-type is ", Quote(content_type_),
                     "; expected application/grpc or application/grpc+proto"));
  }
  if (bad_timeout_) {
    return absl::InternalError(
        "grpc-timeout is malformed; expected up to 8 digits and one of H, M, "
        "S, m, u, n");
  }
  if (!encoding_.empty() && encoding_ != "identity") {
    return absl::UnimplementedError(
        absl::StrCat("grpc-encoding is ", Quote(encoding_),
                     ": compression is disabled; expected identity"));
  }
  return absl::OkStatus();
}

void GrpcCall::DropHead() {
  head_ = RpcHead();
  for (std::string* text : {&verb_, &content_type_, &encoding_}) {
    std::string().swap(*text);
  }
}

void GrpcCall::End(const absl::Status& status) {
  if (std::exchange(ended_, true)) return;
  IgnoreInput();
  if (const auto listener = std::exchange(listener_, nullptr)) {
    listener->OnDone(status);
  }
}

void GrpcCall::WantMessage(std::chrono::milliseconds within) {
  if (ended_ || ignores_) return;
  wants_message_ = true;
  if (within.count() > 0) read_due_ = Clock::now() + within;
}

absl::Status GrpcCall::Deliver() {
  if (!wants_message_ || listener_ == nullptr) return absl::OkStatus();
  bool complete = false;
  if (absl::Status status = reader_.Check(&complete); !status.ok()) {
    return status;
  }
  if (!complete && !half_closed_) {
    if (reader_.buffered() > 0 && !begun_) begun_ = Clock::now();
    return absl::OkStatus();
  }
  if (!complete && reader_.buffered() > 0) {
    return absl::InternalError(
        absl::StrCat("the client closed its side within a message, after ",
                     reader_.buffered(), " bytes"));
  }
  wants_message_ = false;
  read_due_.reset();
  begun_.reset();
  // The listener may drop the last reference to itself in the following call.
  const std::shared_ptr<RpcListener> listener = listener_;
  if (complete) {
    listener->OnMessage(reader_.Take());
  } else {
    listener->OnHalfClose();
  }
  return absl::OkStatus();
}

void GrpcCall::IgnoreInput() {
  ignores_ = true;
  wants_message_ = false;
  read_due_.reset();
  begun_.reset();
  reader_.Clear();
}

bool GrpcCall::IsLate(std::chrono::milliseconds timeout,
                      Clock::time_point now) const {
  if (!wants_message_) return false;
  return (begun_ && now >= *begun_ + timeout) ||
         (read_due_ && now >= *read_due_);
}

void GrpcCall::SetOutput(std::string framed) {
  RECURVE_CHECK(!has_output());
  output_ = std::move(framed);
  packed_ = 0;
  written_told_ = false;
  progress_ = Clock::now();
}

size_t GrpcCall::Pack(uint8_t* buffer, size_t max, Clock::time_point now) {
  const size_t count = std::min(max, output_.size() - packed_);
  std::memcpy(buffer, output_.data() + packed_, count);
  packed_ += count;
  if (count > 0) progress_ = now;
  return count;
}

void GrpcCall::OnSent() {
  if (written_told_ || listener_ == nullptr) return;
  const std::shared_ptr<RpcListener> listener = listener_;
  if (has_output()) {
    listener->OnProgress();
    return;
  }
  written_told_ = true;
  std::string().swap(output_);  // the next message brings its own memory
  packed_ = 0;
  listener->OnWritten();
}

int64_t GrpcCall::held_bytes() const {
  return kCallBytes + received_bytes() +
         static_cast<int64_t>(output_.capacity());
}

}  // namespace recurve
