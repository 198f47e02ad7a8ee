#include "server/grpc/frame_guard.h"

#include <algorithm>
#include <utility>

#include "nghttp2/nghttp2.h"

namespace recurve {
namespace {

// Budgets of a connection, before its client is known and after.
struct Rates {
  double burst;
  double per_second;
};
constexpr Rates kControl[2] = {{200, 20}, {5000, 500}};
// For a known client these cost no more than successful calls, and behind a
// gateway one user's resets must not end the connection of all.
constexpr Rates kResets[2] = {{50, 5}, {5000, 1000}};
constexpr Rates kAcceptedResets = {5000, 1000};
constexpr Rates kCalls[2] = {{50, 10}, {5000, 1000}};
constexpr Rates kWasteBytes[2] = {{1 << 20, 16 << 10}, {16 << 20, 4 << 20}};
// Frames that a client may send for each frame of output: window updates of the
// stream and of the connection, a ping to measure the bandwidth, and its
// acknowledgement.
constexpr double kEarnedAFrame = 4;
// A client that measures the bandwidth sends a ping for each part of output it
// receives. That output may have been in the socket buffers for long, followed
// by many frames already sent: each earns one ping.
constexpr int kMaxEarnedPings = 1000;
// The same policy as in grpc-core's servers: gRPC's clients recognise the error
// text and then ping less often. Some ping every 10 s (Go's minimum), and one
// ping may be delayed and the next on time.
constexpr std::chrono::seconds kMinPingInterval{9};
constexpr int kMaxPingStrikes = 2;
// Limit on the data in transit for refused calls.
constexpr int64_t kMaxUnwantedBytes = 256 << 20;
// A smaller DATA frame is charged like a control frame: otherwise 4 MiB could
// arrive as 4 million frames.
constexpr size_t kSmallData = 32;
// Bytes before the payload of a frame.
constexpr size_t kFrameHead = 9;

}  // namespace

const char* OffenceName(Offence offence) {
  switch (offence) {
    case Offence::kControlFrames:
      return "control_frames";
    case Offence::kPings:
      return "pings";
    case Offence::kResets:
      return "resets";
    case Offence::kHeadSize:
      return "head_size";
    case Offence::kCalls:
      return "calls";
    case Offence::kWaste:
      return "waste";
    case Offence::kMemory:
      return "memory";
    case Offence::kTimeout:
      return "timeout";
    case Offence::kUnread:
      return "unread";
    case Offence::kProtocol:
      return "protocol";
  }
  return "unknown";
}

bool FrameBudget::Take(double amount, Clock::time_point now) {
  if (last_ != Clock::time_point()) {
    const double seconds = std::chrono::duration<double>(now - last_).count();
    left_ = std::min(burst_, left_ + seconds * per_second_);
  }
  last_ = now;
  if (left_ < amount) return false;
  left_ -= amount;
  return true;
}

void FrameBudget::Give(double amount) {
  left_ = std::min(burst_, left_ + amount);
}

void FrameBudget::Widen(double burst, double per_second) {
  left_ += burst - burst_;
  burst_ = burst;
  per_second_ = per_second;
}

FrameGuard::FrameGuard(int64_t max_streams)
    : max_streams_(static_cast<double>(max_streams)),
      control_(kControl[0].burst, kControl[0].per_second),
      resets_(kResets[0].burst, kResets[0].per_second),
      accepted_resets_(std::max(kAcceptedResets.burst, 2 * max_streams_),
                       kAcceptedResets.per_second),
      calls_(kCalls[0].burst, kCalls[0].per_second),
      waste_(kWasteBytes[0].burst, kWasteBytes[0].per_second) {}

void FrameGuard::SetKnown() {
  if (known_) return;
  known_ = true;
  control_.Widen(kControl[1].burst, kControl[1].per_second);
  resets_.Widen(std::max(kResets[1].burst, 2 * max_streams_),
                kResets[1].per_second);
  calls_.Widen(kCalls[1].burst, kCalls[1].per_second);
  waste_.Widen(kWasteBytes[1].burst, kWasteBytes[1].per_second);
}

void FrameGuard::OnSent() {
  control_.Give(kEarnedAFrame);
  earned_pings_ = std::min(earned_pings_ + 1, kMaxEarnedPings);
  ping_strikes_ = 0;
  pinged_ = false;
}

std::optional<Offence> FrameGuard::OnPing(Clock::time_point now) {
  if (earned_pings_ > 0) {
    --earned_pings_;
    return std::nullopt;
  }
  if (pinged_ && now - last_ping_ < kMinPingInterval &&
      ++ping_strikes_ > kMaxPingStrikes) {
    return Offence::kPings;
  }
  pinged_ = true;
  last_ping_ = now;
  return std::nullopt;
}

std::optional<Offence> FrameGuard::OnFrame(uint8_t type, uint8_t flags,
                                           size_t length,
                                           Clock::time_point now) {
  const auto control = [&]() -> std::optional<Offence> {
    if (control_.Take(1, now)) return std::nullopt;
    return Offence::kControlFrames;
  };
  const bool looked_at = type != NGHTTP2_DATA && type <= NGHTTP2_CONTINUATION;
  OnAccounted(kFrameHead + (looked_at ? length : 0));
  switch (type) {
    case NGHTTP2_DATA:
      // The last frame of a call is often empty.
      if (length >= kSmallData || (flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        return std::nullopt;
      }
      return control();
    case NGHTTP2_HEADERS:
      continuations_ = 0;
      head_bytes_ = length;
      break;
    case NGHTTP2_CONTINUATION:
      head_bytes_ += length;
      if (++continuations_ > kMaxContinuations) return Offence::kHeadSize;
      break;
    case NGHTTP2_PING:
      if ((flags & NGHTTP2_FLAG_ACK) == 0) {
        if (const auto offence = OnPing(now)) return offence;
      }
      return control();
    default:
      return control();
  }
  if (head_bytes_ > kMaxHeadBytes) return Offence::kHeadSize;
  return std::nullopt;
}

std::optional<Offence> FrameGuard::OnReceived(size_t bytes,
                                              Clock::time_point now) {
  balance_ += static_cast<int64_t>(bytes);
  if (balance_ <= 0) return std::nullopt;
  const auto waste = static_cast<double>(std::exchange(balance_, 0));
  if (waste_.Take(waste, now)) return std::nullopt;
  return Offence::kWaste;
}

void FrameGuard::OnUnwanted(int64_t bytes) {
  // The amount that OnAccounted subtracted is kept.
  const int64_t least = std::min(balance_, -kMaxUnwantedBytes);
  balance_ = std::max(balance_ - bytes, least);
}

std::optional<Offence> FrameGuard::OnReset(bool accepted,
                                           Clock::time_point now) {
  FrameBudget& budget = accepted ? accepted_resets_ : resets_;
  if (budget.Take(1, now)) return std::nullopt;
  return Offence::kResets;
}

std::optional<Offence> FrameGuard::OnUselessCall(Clock::time_point now) {
  if (calls_.Take(1, now)) return std::nullopt;
  return Offence::kCalls;
}

}  // namespace recurve
