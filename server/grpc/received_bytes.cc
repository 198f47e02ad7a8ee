#include "server/grpc/received_bytes.h"

#include <utility>

namespace recurve {

void ReceivedBytes::Update(const std::shared_ptr<ReceivingCall>& call,
                           int64_t bytes) {
  // Most calls are whole at once and never hold anything.
  if (call->counted_ == bytes) return;
  std::shared_ptr<ReceivingCall> victim;
  {
    MutexLock lock(&mu_);
    bytes_ += bytes - call->counted_;
    const bool held = std::exchange(call->counted_, bytes) > 0;
    if (!held) {
      call->place_ = calls_.insert(calls_.end(), call);
    } else if (bytes == 0 && call->place_ != calls_.end()) {
      calls_.erase(call->place_);
    }
    while (bytes_ > max_bytes_ && !calls_.empty() && victim == nullptr) {
      victim = calls_.front().lock();
      if (victim != nullptr) victim->place_ = calls_.end();
      calls_.pop_front();
    }
  }
  if (victim != nullptr) victim->Evict();
}

}  // namespace recurve
