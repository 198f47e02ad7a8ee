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

// What a service wants of a call's stream, on its way to the strand of the
// connection.
struct CallAction {
  enum class Kind {
    kRead,
    kHead,
    kWrite,
    kFinish,
    kBreak,
    kEvict,  // as kBreak, if the call holds a part of a message by then
    kTrust,
    kAccept,
    kRest
  };
  explicit CallAction(Kind of_kind) : kind(of_kind) {}

  Kind kind;
  std::shared_ptr<GrpcCall> call;
  std::string message;  // with its prefix
  RpcMetadata metadata;
  absl::Status status;
  std::chrono::milliseconds within{0};
};

// One call: its half of the HTTP/2 stream's state. The connection owns the
// protocol and the socket; it drives this object on its strand, where all
// methods but those of RpcStream and ReceivingCall are called.
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
  // One header. `max_bytes` bounds names and values together, each with 32
  // bytes more, as HTTP/2 counts them; what comes beyond is not kept.
  void AddHeader(absl::string_view name, absl::string_view value,
                 size_t max_bytes);
  size_t head_bytes() const { return head_bytes_; }
  const RpcHead& head() const { return head_; }
  // What the head has that no call may have. OK, or how the call ends; with
  // `*http_status` other than 200 as an HTTP answer.
  absl::Status CheckHead(size_t max_bytes, int* http_status) const;
  // The head is complete and not needed any more.
  void DropHead();

  void SetListener(std::shared_ptr<RpcListener> listener) {
    listener_ = std::move(listener);
  }
  // Tells the listener, once, that the call is over.
  void End(const absl::Status& status);
  bool ended() const { return ended_; }

  // --- What the client sends ---
  void Receive(absl::string_view bytes) {
    if (!ignores_) reader_.Append(bytes);
  }
  void SetHalfClosed() { half_closed_ = true; }
  void WantMessage(std::chrono::milliseconds within);
  // Hands the next message, or the half-close, to the listener if it waits for
  // one and it is there. An error: how the call ends.
  absl::Status Deliver();
  // Nobody will read what the client still sends.
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
  // Whether the message that is waited for should have come by now. One that
  // has begun gets `timeout` to its end.
  bool IsLate(std::chrono::milliseconds timeout, Clock::time_point now) const;

  // --- What the server sends ---
  void SetOutput(std::string framed);
  bool has_output() const { return packed_ < output_.size(); }
  bool output_begun() const { return packed_ > 0 && has_output(); }
  void DropOutput() { packed_ = output_.size(); }
  // Copies up to `max` bytes of it; returns how many.
  size_t Pack(uint8_t* buffer, size_t max, Clock::time_point now);
  // The socket has what was packed.
  void OnSent();
  // When the client last took something of the output that waits.
  Clock::time_point progress() const { return progress_; }

  // Bytes that the call holds, for the limits of its connection.
  int64_t held_bytes() const;

  // --- Of the connection, which reads and writes these itself ---
  bool accepted = false;          // see RpcStream::Accept
  bool rests = false;             // see RpcStream::Rest
  bool head_sent = false;         // response headers were submitted
  bool finishing = false;         // Finish was called
  bool status_sent = false;       // trailers were submitted
  bool reset = false;             // by the client
  RpcMetadata trailers;           // of Finish, with the status
  int64_t counted = 0;            // of held_bytes, by the connection
  int64_t unconsumed = 0;         // bytes whose window was not given back
  int32_t window = 65'535;        // of the stream, for what the client sends
  bool waits_for_socket = false;  // among those that OnSent is called for

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
  std::optional<Clock::time_point> begun_;  // the message that is wanted

  std::string output_;  // one message
  size_t packed_ = 0;   // of output_, in the connection's buffer
  bool written_told_ = true;
  Clock::time_point progress_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_CALL_H_
