#ifndef RECURVE_SERVER_GRPC_RECEIVED_BYTES_H_
#define RECURVE_SERVER_GRPC_RECEIVED_BYTES_H_

#include <cstdint>
#include <list>
#include <memory>

#include "base/mutex.h"

namespace recurve {

// What one call holds of messages that its client has not finished, or that
// nobody has asked for yet.
class ReceivingCall {
 public:
  virtual ~ReceivingCall() = default;
  // Gives its memory up, soon. Called from any thread, without locks.
  virtual void Evict() = 0;

 private:
  friend class ReceivedBytes;
  int64_t counted_ = 0;  // whoever calls Update
  // The lock of ReceivedBytes guards these.
  std::list<std::weak_ptr<ReceivingCall>>::iterator place_;
  bool evicted_ = false;
};

// The bytes that all calls of a server hold so. Where they are too many, the
// calls that have held some for longest are evicted, no more of them than it
// takes: clients that never finish a message cannot keep others out.
//
// Thread safety: Update is called for one call by one thread at a time.
class ReceivedBytes {
 public:
  explicit ReceivedBytes(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // `call` holds `bytes` now; 0: nothing any more.
  void Update(const std::shared_ptr<ReceivingCall>& call, int64_t bytes);

 private:
  const int64_t max_bytes_;
  Mutex mu_;
  // Without those of calls that were evicted, which are about to be free.
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Those that hold some and were not evicted, the longest first.
  std::list<std::weak_ptr<ReceivingCall>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_RECEIVED_BYTES_H_
