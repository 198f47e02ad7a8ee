#ifndef RECURVE_SERVER_TENANTS_TOKEN_BUCKET_H_
#define RECURVE_SERVER_TENANTS_TOKEN_BUCKET_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace recurve {

// A rate of tokens a second with a burst: the bucket holds `burst` tokens, is
// full at first and refills at `rate`. Tokens are taken before use, and unused
// ones are returned.
//
// A request may be larger than the bucket, or it could never succeed: it waits
// for a full bucket and leaves a debt. So in any t seconds at most burst + rate
// · t tokens are taken, plus once the excess of one request.
//
// The caller supplies the time. Not thread-safe.
class TokenBucket {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // REQUIRES: rate and burst are at least 1.
  TokenBucket(int64_t rate, int64_t burst, Time now)
      : rate_(static_cast<double>(rate)),
        burst_(static_cast<double>(burst)),
        tokens_(burst_),
        filled_(now) {}

  // Keeps the tokens in the bucket, up to the new burst.
  void SetLimits(int64_t rate, int64_t burst, Time now) {
    Fill(now);
    rate_ = static_cast<double>(rate);
    burst_ = static_cast<double>(burst);
    tokens_ = std::min(tokens_, burst_);
  }

  // False, and nothing is taken, if there are not enough.
  bool Take(int64_t count, Time now) {
    Fill(now);
    if (tokens_ < Needed(count)) return false;
    tokens_ -= static_cast<double>(count);
    return true;
  }

  void Give(int64_t count) {
    tokens_ = std::min(burst_, tokens_ + static_cast<double>(count));
  }

  // Time from `now` until Take would succeed if no other call takes tokens.
  std::chrono::milliseconds Wait(int64_t count, Time now) {
    Fill(now);
    const double seconds = std::max(0.0, Needed(count) - tokens_) / rate_;
    return std::chrono::milliseconds(
        static_cast<int64_t>(std::ceil(seconds * 1e3)));
  }

 private:
  double Needed(int64_t count) const {
    return std::min(static_cast<double>(count), burst_);
  }
  void Fill(Time now) {
    if (now <= filled_) return;
    const std::chrono::duration<double> seconds = now - filled_;
    tokens_ = std::min(burst_, tokens_ + rate_ * seconds.count());
    filled_ = now;
  }

  double rate_;
  double burst_;
  double tokens_;  // negative: a debt
  Time filled_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TENANTS_TOKEN_BUCKET_H_
