#ifndef RECURVE_SERVER_GRPC_FRAME_GUARD_H_
#define RECURVE_SERVER_GRPC_FRAME_GUARD_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace recurve {

// Why the server ends a gRPC connection. The names are label values of
// recurve_grpc_connections_ended_total.
enum class Offence {
  kControlFrames,  // more SETTINGS, WINDOW_UPDATE, PRIORITY, ... than work
  kPings,          // more often than every 9 s without any data
  kResets,         // calls opened and cancelled before they did anything
  kHeadSize,       // a head that does not end
  kCalls,          // calls without a right to be served
  kWaste,          // bytes that belong to no call
  kMemory,         // holds more than a connection may
  kTimeout,        // a preface, a head or a message that does not come
  kUnread,         // output that the client does not take
  kProtocol,       // not HTTP/2
};
inline constexpr int kNumOffences = 10;
const char* OffenceName(Offence offence);
// And of a connection that did no wrong and made room for another.
inline constexpr char kDisplacedName[] = "displaced";

// A budget that refills in time. Not thread-safe.
class FrameBudget {
 public:
  using Clock = std::chrono::steady_clock;
  FrameBudget(double burst, double per_second)
      : burst_(burst), per_second_(per_second), left_(burst) {}

  // False when there is not enough left.
  bool Take(double amount, Clock::time_point now);
  void Give(double amount);
  void Widen(double burst, double per_second);

 private:
  double burst_;
  double per_second_;
  double left_;
  Clock::time_point last_;
};

// Decides which HTTP/2 frames of one connection are too many. Frames that do no
// work (control frames, empty frames, resets of calls that did nothing) are
// paid from budgets that refill in time, and that the server's own output
// refills: a client that receives a stream of tokens may send as many window
// updates and pings as that takes. A connection is known once the server has
// let one of its calls in (RpcStream::Trust); before that its budgets are far
// smaller.
//
// Policy only: it sees headers of frames and the time, and is tested without a
// socket. Not thread-safe.
class FrameGuard {
 public:
  using Clock = std::chrono::steady_clock;

  // Bytes of a head, compressed, before END_HEADERS. What is beyond
  // kMaxMetadataBytes fails its call only; a head that goes on beyond this
  // ends the connection.
  static constexpr size_t kMaxHeadBytes = 64 << 10;
  // CONTINUATION frames of a head. The library takes one more.
  static constexpr int kMaxContinuations = 7;

  // A known client may reset twice as many calls at once as it may have.
  explicit FrameGuard(int64_t max_streams);

  // A frame's 9 bytes have arrived, its payload has not. Not for an RST_STREAM
  // of a call that there is: that is OnReset.
  std::optional<Offence> OnFrame(uint8_t type, uint8_t flags, size_t length,
                                 Clock::time_point now);
  // The client reset a call, which the server had accepted or not.
  std::optional<Offence> OnReset(bool accepted, Clock::time_point now);
  // A call was refused since the client may not make it, or since its head is
  // beyond the limits.
  std::optional<Offence> OnUselessCall(Clock::time_point now);
  // Bytes came; and, of what came or is to come, these belong to a frame that
  // OnFrame looks at, or to a call that wants them. The rest is waste: frames
  // of unknown types, data of calls that were refused.
  std::optional<Offence> OnReceived(size_t bytes, Clock::time_point now);
  void OnAccounted(size_t bytes) { balance_ -= static_cast<int64_t>(bytes); }
  // The server ended a call of a known client that may have sent so many bytes
  // more: they are no waste.
  void OnUnwanted(int64_t bytes);
  // The server sent a HEADERS or DATA frame.
  void OnSent();
  void SetKnown();

 private:
  std::optional<Offence> OnPing(Clock::time_point now);

  const double max_streams_;
  bool known_ = false;
  FrameBudget control_;
  FrameBudget resets_;           // of calls that were not accepted
  FrameBudget accepted_resets_;  // of those that were
  FrameBudget calls_;
  FrameBudget waste_;    // bytes
  int64_t balance_ = 0;  // bytes received and not accounted for
  size_t head_bytes_ = 0;
  int continuations_ = 0;
  // Pings that the server's frames have earned.
  int earned_pings_ = 0;
  // Beyond those: such that came too soon after the one before, and when that
  // was.
  int ping_strikes_ = 0;
  bool pinged_ = false;
  Clock::time_point last_ping_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_FRAME_GUARD_H_
