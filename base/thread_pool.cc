#include "base/thread_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

// How long an idle worker polls before it sleeps. A decode step is a chain of
// short loops; waking a sleeping thread for each costs more than the loop.
constexpr int kSpins = 4000;

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(
    int num_threads) {
  auto pool = std::unique_ptr<ThreadPool>(new ThreadPool());
  RECURVE_RETURN_IF_ERROR(pool->Start(num_threads));
  return pool;
}

ThreadPool::ThreadPool(int num_threads) {
  RECURVE_CHECK(Start(num_threads).ok());
}

absl::Status ThreadPool::Start(int num_threads) {
  RECURVE_CHECK(num_threads >= 1);
  workers_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) {
    absl::StatusOr<std::thread> worker =
        StartThread("work", [this] { WorkerLoop(); });
    if (!worker.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(workers_.size(), " of ", num_threads - 1,
                       " threads: ", worker.status().message()));
    }
    workers_.push_back(*std::move(worker));
  }
  return absl::OkStatus();
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mu_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.NotifyAll();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunItems() {
  for (int64_t left = remaining_.fetch_sub(1); left > 0;
       left = remaining_.fetch_sub(1)) {
    (*body_)(count_ - left);
    unfinished_.fetch_sub(1);
  }
}

void ThreadPool::ParallelFor(int64_t count,
                             absl::FunctionRef<void(int64_t)> body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  body_ = &body;
  count_ = count;
  unfinished_.store(count);
  remaining_.store(count);
  generation_.fetch_add(1);
  if (sleepers_.load() > 0) {
    // The lock pairs with the sleeper's check of generation_, so that a worker
    // about to sleep cannot miss this loop.
    { MutexLock lock(&mu_); }
    wake_.NotifyAll();
  }
  RunItems();
  int spins = 0;
  while (unfinished_.load() > 0) {
    if (++spins > kSpins) {
      std::this_thread::yield();
    } else {
      CpuRelax();
    }
  }
}

void ThreadPool::WorkerLoop() {
  uint64_t seen = 0;
  while (!stop_.load()) {
    int spins = 0;
    while (generation_.load() == seen) {
      if (++spins <= kSpins) {
        CpuRelax();
        continue;
      }
      MutexLock lock(&mu_);
      sleepers_.fetch_add(1);
      while (generation_.load() == seen) wake_.Wait(&mu_);
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load();
    RunItems();
  }
}

}  // namespace recurve
