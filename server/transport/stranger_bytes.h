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

// The memory of connections of unknown clients (--max-stranger-bytes), over
// gRPC and HTTP. A client is known once it has authenticated: by an API key, by
// a certificate, or, on a server that requires neither, by a well-formed call.
//
// Idle connections of unknown clients give way: if there is no room for another
// connection, those idle for longest are ended. So clients that connect and do
// nothing shut out no one.
//
// Thread-safe; a Share is not.
class StrangerBytes {
 public:
  class Share;
  // The port whose connection limit applies.
  enum class Port { kGrpc, kHttp };

  StrangerBytes(int64_t max_a_connection, int64_t max_total)
      : max_a_connection_(max_a_connection), max_total_(max_total) {}

  int64_t max_a_connection() const { return max_a_connection_; }
  int64_t max_total() const { return max_total_; }
  // Including connections that are about to end.
  int64_t total() const { return total_.load(); }

  // Ends the port's connection that has been idle for longest. False: there is
  // none.
  bool EndOldest(Port port);

 private:
  struct Idle {
    Share* share;
    int64_t bytes;
    uint64_t order;  // over all ports
    std::function<void()> end;
  };
  using IdleList = std::list<Idle>;  // the oldest first

  IdleList& ListOf(Port port) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return idle_[static_cast<size_t>(port)];
  }
  // Ends as many idle connections as needed to bring the total within its
  // limit. False, and none ends, if too few are idle.
  bool MakeRoom();
  // Removes the oldest from the list; returns what to call without the lock.
  std::function<void()> TakeOldest(IdleList& list)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t max_a_connection_;
  const int64_t max_total_;
  std::atomic<int64_t> total_{0};

  Mutex mu_;
  std::array<IdleList, 2> idle_ ABSL_GUARDED_BY(mu_);  // indexed by Port
  uint64_t next_order_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t idle_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of idle_
  // The part of total_ held by connections that are about to end.
  int64_t ending_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// One connection's share.
class StrangerBytes::Share {
 public:
  // `all` null: nothing is counted.
  Share(StrangerBytes* all, Port port) : all_(all), port_(port) {}
  ~Share() { Release(); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // The connection now holds `bytes`. False if that exceeds its own limit, or
  // the total's and too few are idle.
  bool Set(int64_t bytes);
  // The connection is idle from now on. `end` is called at most once, on any
  // thread and without a lock; it ends the connection soon, unless its client
  // has become known.
  void SetIdle(std::function<void()> end);
  void SetBusy();
  // The client is known, or the connection closed: other limits apply.
  void Release();
  // Whether it is counted: not released, and `all` was not null.
  bool counted() const { return all_ != nullptr; }

 private:
  friend class StrangerBytes;
  // REQUIRES: the lock of all_ is held.
  void Unlist() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all_->mu_);

  StrangerBytes* all_;
  const Port port_;
  int64_t bytes_ = 0;
  // Guarded by the lock of all_.
  std::optional<IdleList::iterator> place_;  // while it is idle
  bool ending_ = false;
  int64_t ending_bytes_ = 0;  // as counted by all_
};

// Memory of an idle connection: buffers, the state of its protocol, and of TLS.
// Measured with 4,000 idle connections each.
inline constexpr int64_t kPlainConnectionBytes = 40 << 10;
inline constexpr int64_t kTlsConnectionBytes = 96 << 10;

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_STRANGER_BYTES_H_
