#ifndef RECURVE_SERVER_GRPC_RECEIVED_BYTES_H_
#define RECURVE_SERVER_GRPC_RECEIVED_BYTES_H_

#include <cstdint>
#include <list>
#include <memory>

#include "base/mutex.h"

namespace recurve {

// A call's memory for incomplete messages, and for complete ones not yet
// requested.
class ReceivingCall {
 public:
  virtual ~ReceivingCall() = default;
  // Frees its memory soon. Called from any thread, without locks.
  virtual void Evict() = 0;

 private:
  friend class ReceivedBytes;
  int64_t counted_ = 0;  // by the caller of Update
  // Guarded by the lock of ReceivedBytes.
  std::list<std::weak_ptr<ReceivingCall>>::iterator place_;
  bool evicted_ = false;
};

// The total of this memory for all calls of a server. Above the limit, the
// calls that have held some for longest are evicted, only as many as necessary:
// clients that never complete a message cannot shut out others.
//
// Thread safety: Update is called for one call by one thread at a time.
class ReceivedBytes {
 public:
  explicit ReceivedBytes(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // `call` now holds `bytes`; 0: none any more.
  void Update(const std::shared_ptr<ReceivingCall>& call, int64_t bytes);

 private:
  const int64_t max_bytes_;
  Mutex mu_;
  // Without the bytes of evicted calls, which are about to be freed.
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Calls that hold some and were not evicted, the longest first.
  std::list<std::weak_ptr<ReceivingCall>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_RECEIVED_BYTES_H_
