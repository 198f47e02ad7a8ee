#include "server/grpc/received_bytes.h"

#include <utility>
#include <vector>

namespace recurve {

void ReceivedBytes::Update(const std::shared_ptr<ReceivingCall>& call,
                           int64_t bytes) {
  // Most calls arrive in one piece and never hold any.
  if (call->counted_ == bytes) return;
  std::vector<std::shared_ptr<ReceivingCall>> victims;
  {
    MutexLock lock(&mu_);
    const int64_t before = std::exchange(call->counted_, bytes);
    if (call->evicted_) {
      call->evicted_ = bytes > 0;
      return;
    }
    bytes_ += bytes - before;
    if (before == 0) {
      call->place_ = calls_.insert(calls_.end(), call);
    } else if (bytes == 0) {
      calls_.erase(call->place_);
    }
    while (bytes_ > max_bytes_ && !calls_.empty()) {
      if (auto victim = calls_.front().lock()) {
        bytes_ -= victim->counted_;
        victim->evicted_ = true;
        victims.push_back(std::move(victim));
      }
      calls_.pop_front();
    }
  }
  for (const auto& victim : victims) victim->Evict();
}

}  // namespace recurve
