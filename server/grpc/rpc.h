#ifndef RECURVE_SERVER_GRPC_RPC_H_
#define RECURVE_SERVER_GRPC_RPC_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace recurve {

// The interface between the gRPC transport (grpc_server.h) and the services
// that answer calls.

// Names are lower case. Binary values ("-bin") are not supported.
using RpcMetadata = std::vector<std::pair<std::string, std::string>>;

// The head of a call: everything before its first message.
struct RpcHead {
  std::string method;                      // "/recurve.v1.Inference/Generate"
  std::vector<std::string> authorization;  // the values, one per header
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

// Receives the events of one call. Called on a thread of the server, one event
// at a time.
class RpcListener {
 public:
  virtual ~RpcListener() = default;
  // Answers RpcStream::Read: the next message, or the end of the messages.
  virtual void OnMessage(std::string message) = 0;
  virtual void OnHalfClose() = 0;
  // The socket has accepted all of the message given to Write.
  virtual void OnWritten() = 0;
  // The socket has accepted a part of it: the client reads.
  virtual void OnProgress() {}
  // The call is over. Called once, and last. OK: the status of Finish is on its
  // way. Cancelled: the client cancelled or disconnected. DeadlineExceeded.
  // ResourceExhausted: the server disconnected the client.
  virtual void OnDone(const absl::Status& status) = 0;
};

// Answers one call. Thread-safe; never blocks. After Finish, Break or the
// listener's OnDone further calls have no effect.
class RpcStream {
 public:
  virtual ~RpcStream() = default;
  // Requests one message. REQUIRES: no other Read is outstanding. If it is not
  // complete `within` this time the call ends with DEADLINE_EXCEEDED; 0: no
  // limit, except GrpcServerOptions::message_timeout for a message that has
  // begun.
  virtual void Read(std::chrono::milliseconds within) = 0;
  // Optional; before the first Write.
  virtual void SendHead(RpcMetadata metadata) = 0;
  // REQUIRES: OnWritten was called for the previous message. `message` has no
  // prefix.
  virtual void Write(const std::string& message) = 0;
  // Ends the call after the message in transit. A metadata entry must not end
  // in "-bin".
  virtual void Finish(absl::Status status, RpcMetadata trailers) = 0;
  // Ends the call immediately. The client sees CANCELLED.
  virtual void Break() = 0;
  // The client is authorised: the limits of known clients apply to its
  // connection from now on (frame_guard.h).
  virtual void Trust() = 0;
  // The call does work for a known client: its cancellation does not count as
  // abuse.
  virtual void Accept() = 0;
  // The call only waits for events, which may never come: a connection of an
  // unknown client without other calls counts as idle, and may be ended to make
  // room.
  virtual void Rest() = 0;
};

// Begins a call. Returns its listener, or null after `stream->Finish`.
using RpcMethod = std::function<std::shared_ptr<RpcListener>(
    const RpcHead& head, std::shared_ptr<RpcStream> stream)>;

// Keyed by RpcHead::method.
using RpcMethods = std::unordered_map<std::string, RpcMethod>;

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_RPC_H_
