#ifndef RECURVE_SERVER_GRPC_CALL_H_
#define RECURVE_SERVER_GRPC_CALL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/grpc/message_reader.h"
#include "server/grpc/received_bytes.h"
#include "server/grpc/rpc.h"

namespace recurve {

class GrpcConnection;
class GrpcCall;

// A service's operation on a call's stream, queued for the strand of the
// connection.
struct CallAction {
  enum class Kind {
    kRead,
    kHead,
    kWrite,
    kFinish,
    kBreak,
    kEvict,  // as kBreak, if the call then still holds a partial message
    kTrust,
    kAccept,
    kRest
  };
  explicit CallAction(Kind of_kind) : kind(of_kind) {}

  Kind kind;
  std::shared_ptr<GrpcCall> call;
  std::string message;  // including its prefix
  RpcMetadata metadata;
  absl::Status status;
  std::chrono::milliseconds within{0};
};

// One call: its half of the HTTP/2 stream's state. The connection owns the
// protocol and the socket; it drives this object on its strand, where all
// methods except those of RpcStream and ReceivingCall are called.
class GrpcCall : public RpcStream,
                 public ReceivingCall,
                 public std::enable_shared_from_this<GrpcCall> {
 public:
  using Clock = std::chrono::steady_clock;

  GrpcCall(std::shared_ptr<GrpcConnection> connection, int32_t id,
           size_t max_message_bytes);

  // --- RpcStream ---
  void Read(std::chrono::milliseconds within) override;
  void SendHead(RpcMetadata metadata) override;
  void Write(const std::string& message) override;
  void Finish(absl::Status status, RpcMetadata trailers) override;
  void Break() override;
  void Trust() override;
  void Accept() override;
  void Rest() override;
  // --- ReceivingCall ---
  void Evict() override;

  int32_t id() const { return id_; }

  // --- The head ---
  // One header. `max_bytes` limits names and values together, each with 32
  // bytes more, as HTTP/2 counts them; headers beyond it are not kept.
  void AddHeader(absl::string_view name, absl::string_view value,
                 size_t max_bytes);
  size_t head_bytes() const { return head_bytes_; }
  const RpcHead& head() const { return head_; }
  // Checks the head for errors. OK, or the status of the call; with
  // `*http_status` other than 200 as an HTTP answer.
  absl::Status CheckHead(size_t max_bytes, int* http_status) const;
  // Frees the head, which is complete and no longer needed.
  void DropHead();

  void SetListener(std::shared_ptr<RpcListener> listener) {
    listener_ = std::move(listener);
  }
  // Reports the end of the call to the listener, once.
  void End(const absl::Status& status);
  bool ended() const { return ended_; }

  // --- Input ---
  void Receive(absl::string_view bytes) {
    if (!ignores_) reader_.Append(bytes);
  }
  void SetHalfClosed() { half_closed_ = true; }
  void WantMessage(std::chrono::milliseconds within);
  // Passes the next message, or the half-close, to the listener if it waits for
  // one and it has arrived. An error is the status of the call.
  absl::Status Deliver();
  // Discards further input.
  void IgnoreInput();
  // Bytes of messages that were received and not delivered.
  int64_t received_bytes() const {
    return static_cast<int64_t>(reader_.buffered());
  }
  bool wants_message() const { return wants_message_; }
  // Whether the next message is wanted and larger than `bytes`.
  bool WantsMoreThan(size_t bytes) const {
    return wants_message_ && reader_.announced() > bytes;
  }
  // Whether the awaited message is overdue. One that has begun must be complete
  // within `timeout`.
  bool IsLate(std::chrono::milliseconds timeout, Clock::time_point now) const;

  // --- Output ---
  void SetOutput(std::string framed);
  bool has_output() const { return packed_ < output_.size(); }
  bool output_begun() const { return packed_ > 0 && has_output(); }
  void DropOutput() { packed_ = output_.size(); }
  // Copies up to `max` bytes of the output; returns their number.
  size_t Pack(uint8_t* buffer, size_t max, Clock::time_point now);
  // The packed bytes are written to the socket.
  void OnSent();
  // When the client last accepted some of the pending output.
  Clock::time_point progress() const { return progress_; }

  // Memory held by the call, for the limits of its connection.
  int64_t held_bytes() const;

  // --- State of the connection, which accesses it directly ---
  bool accepted = false;          // see RpcStream::Accept
  bool rests = false;             // see RpcStream::Rest
  bool head_sent = false;         // response headers were submitted
  bool finishing = false;         // Finish was called
  bool status_sent = false;       // trailers were submitted
  bool reset = false;             // by the client
  RpcMetadata trailers;           // of Finish, with the status
  int64_t counted = 0;            // held_bytes counted by the connection so far
  int64_t unconsumed = 0;         // bytes whose window was not given back
  int32_t window = 65'535;        // receive window of the stream
  bool waits_for_socket = false;  // OnSent will be called for it

 private:
  void Post(CallAction action);

  const std::shared_ptr<GrpcConnection> connection_;
  const int32_t id_;
  RpcHead head_;
  std::string verb_;
  std::string content_type_;
  std::string encoding_;
  bool bad_timeout_ = false;
  size_t head_bytes_ = 0;

  std::shared_ptr<RpcListener> listener_;
  bool ended_ = false;

  MessageReader reader_;
  bool half_closed_ = false;
  bool ignores_ = false;
  bool wants_message_ = false;
  std::optional<Clock::time_point> read_due_;
  std::optional<Clock::time_point> begun_;  // start of the awaited message

  std::string output_;  // one message
  size_t packed_ = 0;   // bytes of output_ in the connection's buffer
  bool written_told_ = true;
  Clock::time_point progress_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_CALL_H_
