#ifndef RECURVE_BASE_MUTEX_H_
#define RECURVE_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "base/thread_sanitizer.h"

namespace recurve {

// std::mutex with clang's thread-safety annotations. Not absl::Mutex: the
// distribution's Abseil is not built with ThreadSanitizer, which then cannot
// see its locks.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// wait_for waits on the steady clock, which cannot be set. libstdc++ then calls
// pthread_cond_clockwait, which ThreadSanitizer of GCC 12 does not intercept:
// only under it, the wait is on the system clock.
class CondVar {
 public:
  // REQUIRES: *mu is held. It is released while waiting and held on return;
  // wake-ups may be spurious.
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // As Wait, for at most `timeout`. Returns false when it ran out.
  bool WaitFor(Mutex* mu, std::chrono::nanoseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
#if RECURVE_TSAN
    const auto deadline =
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::system_clock::duration>(
            timeout);
    const std::cv_status status = cv_.wait_until(lock, deadline);
#else
    const std::cv_status status = cv_.wait_for(lock, timeout);
#endif
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace recurve

#endif  // RECURVE_BASE_MUTEX_H_
