#ifndef RECURVE_SERVER_GRPC_CONNECTION_H_
#define RECURVE_SERVER_GRPC_CONNECTION_H_

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/grpc/call.h"
#include "server/grpc/frame_guard.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/http2_session.h"
#include "server/grpc/received_bytes.h"
#include "server/transport/stranger_bytes.h"
#include "server/transport/transport_stream.h"

namespace recurve {

class GrpcConnection;

// State shared by the connections of a server. Thread-safe.
class GrpcConnections {
 public:
  GrpcConnections(const GrpcServerOptions& options, RpcMethods methods)
      : options_(options),
        methods_(std::move(methods)),
        received_(options.max_received_bytes) {}
  virtual ~GrpcConnections() = default;
  // A connection was closed; called once for each.
  virtual void Remove(GrpcConnection* connection) = 0;
  // A connection is ended to make room for another.
  virtual void OnDisplaced() = 0;
  // A connection is ended for `offence`; called at most once for each.
  virtual void OnOffence(const std::string& peer, Offence offence) = 0;

  const GrpcServerOptions& options() const { return options_; }
  const RpcMethods& methods() const { return methods_; }
  ReceivedBytes& received() { return received_; }

 private:
  const GrpcServerOptions options_;
  const RpcMethods methods_;
  ReceivedBytes received_;
};

// One HTTP/2 connection: a socket, the protocol's state and its calls.
//
// Input is read only as fast as the client accepts output, and FrameGuard ends
// the connection for frames that a client has no reason to send. So a
// connection holds a bounded amount of memory, whatever it receives; before its
// client is known (RpcStream::Trust), GrpcServerOptions::max_stranger_bytes.
//
// All private methods run on the connection's strand.
class GrpcConnection : public Http2Session::Handler,
                       public std::enable_shared_from_this<GrpcConnection> {
 public:
  GrpcConnection(std::shared_ptr<GrpcConnections> connections,
                 boost::asio::ip::tcp::socket socket,
                 std::shared_ptr<boost::asio::ssl::context> tls);

  void Start();
  // The following are thread-safe.
  //
  // Accepts no new calls from now on and closes when the current ones are over.
  void PostShutdown();
  void PostClose();
  // Ends immediately, to make room for another, unless the client has become
  // known.
  void PostDisplace();
  // Queues `action`, to be executed soon and in the order of the calls.
  void Enqueue(CallAction action);

  // --- Http2Session::Handler, on the strand ---
  bool OnBeginFrame(uint8_t type, uint8_t flags, size_t length,
                    int32_t stream) override;
  bool OnBeginCall(int32_t stream) override;
  bool OnHeader(int32_t stream, absl::string_view name,
                absl::string_view value) override;
  void OnHeadDone(int32_t stream, bool end_stream) override;
  void OnData(int32_t stream, absl::string_view bytes) override;
  void OnEndStream(int32_t stream) override;
  bool OnReset(int32_t stream) override;
  bool OnInvalid() override;
  void OnStreamClosed(int32_t stream) override;
  void OnSentFrame(int32_t stream, bool ends_stream) override;
  size_t Pack(int32_t stream, uint8_t* buffer, size_t max, bool* more) override;

 private:
  using Clock = std::chrono::steady_clock;
  using CallPtr = std::shared_ptr<GrpcCall>;
  enum class State {
    kHandshake,  // TLS
    kOpen,
    kEnding,  // only output is still written
    kClosed
  };

  const GrpcServerOptions& options() const { return connections_->options(); }

  bool OnStrand() const;
  template <typename F>
  void Post(F f);
  GrpcCall* Find(int32_t stream);

  void Read();
  void OnRead(size_t bytes);
  // Executes the queued actions.
  void TakeActions();
  void Carry(CallAction& action);
  void Flush();
  void OnFlushed(size_t bytes);

  // The head of a call has arrived.
  void StartCall(const CallPtr& call, bool end_stream);
  void Refuse(const CallPtr& call, const absl::Status& status, int http_status);
  void Deliver(const CallPtr& call);
  void GiveWindow(GrpcCall& call);
  void SubmitHead(GrpcCall& call, RpcMetadata metadata);
  void FinishCall(GrpcCall& call, const absl::Status& status,
                  RpcMetadata trailers);
  void SubmitStatus(GrpcCall& call);
  // Ends the call by a reset; the listener gets `status`.
  void BreakCall(const CallPtr& call, const absl::Status& status);
  void OnDeadline(const CallPtr& call);
  void SetKnown();
  // Tells share_ whether the client is unknown and the connection is idle.
  void UpdateIdle();
  // Records an offence that the guard found, until the library has returned.
  void Charge(std::optional<Offence> offence);
  // Updates the memory counted for the call.
  void Count(GrpcCall& call);
  // Whether the connection is within its memory limit; otherwise ends it.
  bool CheckMemory();

  // Ends the connection: tells the client why; an offence is also counted and
  // penalised.
  void EndFor(Offence offence, absl::string_view reason = "");
  void EndWith(uint32_t http2_error, absl::string_view reason);
  // Ends it when all output is sent and there is nothing to wait for.
  void EndWhenIdle();
  std::chrono::milliseconds Penalty() const;
  void EndCalls(const absl::Status& status);
  void Close(const absl::Status& status);

  // Bytes that the peer has not acknowledged; -1: unknown.
  int UntakenBytes();
  void Arm(Clock::time_point when);
  void OnTimer();
  // Checks timeouts. False: the connection was ended.
  bool CheckTimes(Clock::time_point now);
  bool CheckCalls(Clock::time_point now);
  Clock::time_point NextCheck(Clock::time_point now) const;
  std::chrono::milliseconds CheckInterval() const;

  const std::shared_ptr<GrpcConnections> connections_;
  const boost::asio::ip::tcp::socket::executor_type strand_;
  TransportStream transport_;
  boost::asio::steady_timer timer_;
  std::string peer_;  // address and port
  State state_ = State::kHandshake;
  std::atomic<bool> closed_{false};

  Http2Session session_;
  FrameGuard guard_;
  std::optional<Offence> offence_;  // found while frames were parsed
  bool known_ = false;
  bool spoken_ = false;  // the client's preface arrived
  bool shutting_down_ = false;
  bool displaced_ = false;  // closes once the farewell is written
  // While kEnding: reads until the client closes. Closing a socket with unread
  // input resets the connection, which discards output in transit.
  bool lingers_ = false;
  std::unordered_map<int32_t, CallPtr> calls_;
  // For calls with a deadline.
  std::unordered_map<int32_t, std::unique_ptr<boost::asio::steady_timer>>
      deadlines_;
  int64_t held_bytes_ = 0;  // of calls_
  StrangerBytes::Share share_;

  Clock::time_point begun_;                      // accepted
  Clock::time_point heard_;                      // last input
  Clock::time_point useful_;                     // last time with a call
  std::optional<Clock::time_point> head_begun_;  // and not complete
  std::optional<Clock::time_point> pinged_;      // and not answered
  Clock::time_point timer_at_ = Clock::time_point::max();

  // Bytes of the connection: received, and up to the end of the last frame that
  // has begun. The client's preface is not a frame.
  int64_t received_ = 0;
  int64_t frame_end_ = 24;
  // State of the head that has begun.
  bool head_goes_on_ = false;  // continues in another frame
  int64_t head_frame_bytes_ = 0;

  bool reading_ = false;
  std::array<char, 16 << 10> read_;
  bool writing_ = false;
  std::string output_;  // whole frames
  size_t written_ = 0;
  std::string farewell_;         // after output_, when the connection ends
  int untaken_bytes_ = 0;        // not acknowledged when some was last taken
  Clock::time_point taken_;      // and when that was
  std::vector<CallPtr> packed_;  // calls packed into output_

  Mutex mu_;
  std::vector<CallAction> actions_ ABSL_GUARDED_BY(mu_);
  bool actions_posted_ ABSL_GUARDED_BY(mu_) = false;
  bool actions_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_CONNECTION_H_
