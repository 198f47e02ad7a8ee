#ifndef RECURVE_SERVER_VLLM_THROUGHPUT_H_
#define RECURVE_SERVER_VLLM_THROUGHPUT_H_

#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace recurve {

// The rate of a counter between the readings of those who poll it. Thread-safe.
class Throughput {
 public:
  using Clock = std::chrono::steady_clock;

  // The counter is `total` at `now`. Returns its growth a second since the last
  // reading that is a second old or more; 0 before there is one.
  double Read(uint64_t total, Clock::time_point now) {
    MutexLock lock(&mu_);
    if (!started_) {
      started_ = true;
      total_ = total;
      at_ = now;
      return 0;
    }
    const double seconds = std::chrono::duration<double>(now - at_).count();
    if (seconds >= 1) {
      rate_ = static_cast<double>(total - total_) / seconds;
      total_ = total;
      at_ = now;
    }
    return rate_;
  }

 private:
  Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  Clock::time_point at_ ABSL_GUARDED_BY(mu_);
  double rate_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_THROUGHPUT_H_
