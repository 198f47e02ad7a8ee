#ifndef RECURVE_SERVER_TRANSPORT_STRANGER_BYTES_H_
#define RECURVE_SERVER_TRANSPORT_STRANGER_BYTES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "base/mutex.h"

namespace recurve {

// The memory that connections hold, over gRPC and HTTP, before their client
// has shown that it may call: by an API key, by a certificate, or, on a server
// that asks for neither, by a call that is well formed.
//
// Such connections give way while they are idle: where there is no room for
// another, those that have been idle for longest are ended. So strangers that
// connect and do nothing keep nobody out.
//
// Thread-safe; a Share is not.
class StrangerBytes {
 public:
  class Share;
  // Whose limit of connections a connection counts for.
  enum class Port { kGrpc, kHttp };

  StrangerBytes(int64_t max_a_connection, int64_t max_total)
      : max_a_connection_(max_a_connection), max_total_(max_total) {}

  int64_t max_a_connection() const { return max_a_connection_; }
  int64_t max_total() const { return max_total_; }
  // Those included that are about to end.
  int64_t total() const { return total_.load(); }

  // Ends the connection of the port that has been idle for longest. False:
  // there is none.
  bool EndOldest(Port port);

 private:
  struct Idle {
    Share* share;
    int64_t bytes;
    uint64_t order;  // of all ports
    std::function<void()> end;
  };
  using IdleList = std::list<Idle>;  // the oldest first

  IdleList& ListOf(Port port) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return idle_[static_cast<size_t>(port)];
  }
  // Has the total within its limit, or ends as many connections as must be
  // gone for that. False, and none ends, where too few are idle.
  bool MakeRoom();
  // Takes the oldest off the list; what to call without the lock.
  std::function<void()> TakeOldest(IdleList& list)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t max_a_connection_;
  const int64_t max_total_;
  std::atomic<int64_t> total_{0};

  Mutex mu_;
  std::array<IdleList, 2> idle_ ABSL_GUARDED_BY(mu_);  // by Port
  uint64_t next_order_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t idle_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of idle_
  // The part of total_ that connections hold which are about to end.
  int64_t ending_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// What one connection holds.
class StrangerBytes::Share {
 public:
  // `all` null: nothing is counted.
  Share(StrangerBytes* all, Port port) : all_(all), port_(port) {}
  ~Share() { Release(); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // It holds `bytes` now. False when that is too much, for it or for all and
  // too few are idle.
  bool Set(int64_t bytes);
  // It does nothing from now on. `end` is called at most once, on any thread
  // and without a lock, and has the connection end soon, unless its client has
  // become known.
  void SetIdle(std::function<void()> end);
  void SetBusy();
  // The client is known, or the connection gone: what it holds is bounded
  // elsewhere.
  void Release();
  // Whether it is counted: not released, and there is something to count for.
  bool counted() const { return all_ != nullptr; }

 private:
  friend class StrangerBytes;
  // With the lock of all_.
  void Unlist() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all_->mu_);

  StrangerBytes* all_;
  const Port port_;
  int64_t bytes_ = 0;
  // With the lock of all_.
  std::optional<IdleList::iterator> place_;  // while it is idle
  bool ending_ = false;
  int64_t ending_bytes_ = 0;  // that all_ counts for it
};

// What a connection takes with nothing under way: buffers, the state of its
// protocol, and of TLS. Measured with 4,000 idle connections each.
inline constexpr int64_t kPlainConnectionBytes = 40 << 10;
inline constexpr int64_t kTlsConnectionBytes = 96 << 10;

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_STRANGER_BYTES_H_
