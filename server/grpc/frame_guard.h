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
  kControlFrames,  // more SETTINGS, WINDOW_UPDATE, PRIORITY, ... than useful
                   // frames
  kPings,          // more often than every 9 s without any data
  kResets,         // calls opened and cancelled before they did any work
  kHeadSize,       // an endless head
  kCalls,          // unauthorised calls
  kWaste,          // bytes that belong to no call
  kMemory,         // exceeds the memory limit of a connection
  kTimeout,        // an overdue preface, head or message
  kUnread,         // output that the client does not read
  kProtocol,       // not HTTP/2
};
inline constexpr int kNumOffences = 10;
const char* OffenceName(Offence offence);
// The name for a harmless connection that made room for another.
inline constexpr char kDisplacedName[] = "displaced";

// A budget that refills over time. Not thread-safe.
class FrameBudget {
 public:
  using Clock = std::chrono::steady_clock;
  FrameBudget(double burst, double per_second)
      : burst_(burst), per_second_(per_second), left_(burst) {}

  // False if not enough is left.
  bool Take(double amount, Clock::time_point now);
  void Give(double amount);
  void Widen(double burst, double per_second);

 private:
  double burst_;
  double per_second_;
  double left_;
  Clock::time_point last_;
};

// Decides which HTTP/2 frames of one connection are too many. Frames without
// useful work (control frames, empty frames, resets of calls that did nothing)
// are charged to budgets that refill over time, and with the server's own
// output: a client that receives a stream of tokens may send the window updates
// and pings that this requires. A connection is known once the server has
// accepted one of its calls (RpcStream::Trust); before that its budgets are far
// smaller.
//
// Policy only: it sees frame headers and the time, and is tested without a
// socket. Not thread-safe.
class FrameGuard {
 public:
  using Clock = std::chrono::steady_clock;

  // Compressed bytes of a head, before END_HEADERS. A head beyond
  // kMaxMetadataBytes fails only its call; one beyond this limit ends the
  // connection.
  static constexpr size_t kMaxHeadBytes = 64 << 10;
  // CONTINUATION frames of a head. The library accepts one more.
  static constexpr int kMaxContinuations = 7;

  // A known client may reset twice `max_streams` calls in a burst.
  explicit FrameGuard(int64_t max_streams);

  // A frame's 9 header bytes have arrived, its payload has not. Not for an
  // RST_STREAM of an existing call: that is OnReset.
  std::optional<Offence> OnFrame(uint8_t type, uint8_t flags, size_t length,
                                 Clock::time_point now);
  // The client reset a call; `accepted`: whether the server had accepted it.
  std::optional<Offence> OnReset(bool accepted, Clock::time_point now);
  // A call was refused because the client may not make it, or because its head
  // exceeds the limits.
  std::optional<Offence> OnUselessCall(Clock::time_point now);
  // Bytes arrived; and, of present or future ones, these belong to a frame that
  // OnFrame checks, or to a call that wants them. The rest is waste: frames of
  // unknown types, data of refused calls.
  std::optional<Offence> OnReceived(size_t bytes, Clock::time_point now);
  void OnAccounted(size_t bytes) { balance_ -= static_cast<int64_t>(bytes); }
  // The server ended a call of a known client that may have sent `bytes` more:
  // they are not waste.
  void OnUnwanted(int64_t bytes);
  // The server sent a HEADERS or DATA frame.
  void OnSent();
  void SetKnown();

 private:
  std::optional<Offence> OnPing(Clock::time_point now);

  const double max_streams_;
  bool known_ = false;
  FrameBudget control_;
  FrameBudget resets_;           // for calls that were not accepted
  FrameBudget accepted_resets_;  // for calls that were
  FrameBudget calls_;
  FrameBudget waste_;    // bytes
  int64_t balance_ = 0;  // bytes received and not accounted for
  size_t head_bytes_ = 0;
  int continuations_ = 0;
  // Pings that the server's frames have earned.
  int earned_pings_ = 0;
  // Other pings that came too soon after the previous one, and its time.
  int ping_strikes_ = 0;
  bool pinged_ = false;
  Clock::time_point last_ping_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_FRAME_GUARD_H_
