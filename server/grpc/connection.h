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

// What the connections of a server share. Thread-safe.
class GrpcConnections {
 public:
  GrpcConnections(const GrpcServerOptions& options, RpcMethods methods)
      : options_(options),
        methods_(std::move(methods)),
        received_(options.max_received_bytes) {}
  virtual ~GrpcConnections() = default;
  // A connection is closed; called once for each.
  virtual void Remove(GrpcConnection* connection) = 0;
  // It is ended to make room for another.
  virtual void OnDisplaced() = 0;
  // It is ended, for this; called at most once for each.
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
// What a client sends is read only as fast as it takes what it is sent, and
// FrameGuard ends the connection for what a client has no reason to send. So a
// connection holds a bounded amount of memory, whatever comes over it; before
// it is known (RpcStream::Trust), GrpcServerOptions::max_stranger_bytes.
//
// All private methods run on the connection's strand.
class GrpcConnection : public Http2Session::Handler,
                       public std::enable_shared_from_this<GrpcConnection> {
 public:
  GrpcConnection(std::shared_ptr<GrpcConnections> connections,
                 boost::asio::ip::tcp::socket socket,
                 std::shared_ptr<boost::asio::ssl::context> tls);

  void Start();
  // The rest is thread-safe.
  //
  // Takes no new calls from now on and closes when those that it has are over.
  void PostShutdown();
  void PostClose();
  // Ends at once, to make room for another, unless the client has become known.
  void PostDisplace();
  // Has `action` carried out, soon and in the order of the calls.
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
  // Carries out what was enqueued.
  void TakeActions();
  void Carry(CallAction& action);
  void Flush();
  void OnFlushed(size_t bytes);

  // The head of a call is there.
  void StartCall(const CallPtr& call, bool end_stream);
  void Refuse(const CallPtr& call, const absl::Status& status, int http_status);
  void Deliver(const CallPtr& call);
  void GiveWindow(GrpcCall& call);
  void SubmitHead(GrpcCall& call, RpcMetadata metadata);
  void FinishCall(GrpcCall& call, const absl::Status& status,
                  RpcMetadata trailers);
  void SubmitStatus(GrpcCall& call);
  // Ends the call, which the listener hears as `status`, by a reset.
  void BreakCall(const CallPtr& call, const absl::Status& status);
  void OnDeadline(const CallPtr& call);
  void SetKnown();
  // Tells share_ whether the client is unknown and waits for nothing.
  void UpdateIdle();
  // Remembers an offence that the guard found, for when the library is left.
  void Charge(std::optional<Offence> offence);
  // Brings what is counted of the call up to date.
  void Count(GrpcCall& call);
  // Whether the connection holds no more than it may; it is ended if not.
  bool CheckMemory();

  // Ends the connection: tells the client why, and for an offence also counts
  // and punishes it.
  void EndFor(Offence offence, absl::string_view reason = "");
  void EndWith(uint32_t http2_error, absl::string_view reason);
  // Ends it when all is sent and there is nothing to wait for.
  void EndWhenIdle();
  std::chrono::milliseconds Penalty() const;
  void EndCalls(const absl::Status& status);
  void Close(const absl::Status& status);

  // Bytes that the other side has not acknowledged; -1: not known.
  int UntakenBytes();
  void Arm(Clock::time_point when);
  void OnTimer();
  // Looks for what took too long. False: the connection was ended.
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
  std::optional<Offence> offence_;  // found while frames were taken in
  bool known_ = false;
  bool spoken_ = false;  // the client's preface came
  bool shutting_down_ = false;
  bool displaced_ = false;  // closes as soon as the farewell is written
  // While kEnding: reads on until the client closes. A socket that is closed
  // with input unread resets the connection, and takes away what is on its way.
  bool lingers_ = false;
  std::unordered_map<int32_t, CallPtr> calls_;
  // Deadlines, of those that have one.
  std::unordered_map<int32_t, std::unique_ptr<boost::asio::steady_timer>>
      deadlines_;
  int64_t held_bytes_ = 0;  // of calls_
  StrangerBytes::Share share_;

  Clock::time_point begun_;                      // accepted
  Clock::time_point heard_;                      // something came
  Clock::time_point useful_;                     // a call was there
  std::optional<Clock::time_point> head_begun_;  // and not come to its end
  std::optional<Clock::time_point> pinged_;      // and not answered
  Clock::time_point timer_at_ = Clock::time_point::max();

  // Bytes of the connection: that have come, and where the last frame ends that
  // has begun. The client's preface is no frame.
  int64_t received_ = 0;
  int64_t frame_end_ = 24;
  // Of the head that has begun.
  bool head_goes_on_ = false;  // in another frame
  int64_t head_frame_bytes_ = 0;

  bool reading_ = false;
  std::array<char, 16 << 10> read_;
  bool writing_ = false;
  std::string output_;  // whole frames
  size_t written_ = 0;
  std::string farewell_;     // behind output_, when the connection ends
  int untaken_bytes_ = 0;    // by the client's system, when it last took some
  Clock::time_point taken_;  // and when that was
  std::vector<CallPtr> packed_;  // into output_

  Mutex mu_;
  std::vector<CallAction> actions_ ABSL_GUARDED_BY(mu_);
  bool actions_posted_ ABSL_GUARDED_BY(mu_) = false;
  bool actions_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_CONNECTION_H_
