#ifndef RECURVE_BASE_THREAD_POOL_H_
#define RECURVE_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace recurve {

// Runs loops over independent items on a fixed set of threads. The calling
// thread works too, so a pool of one thread starts none.
//
// Which thread runs an item is not fixed; a loop body must compute the same
// bits for an item wherever and whenever it runs.
//
// Thread safety: one caller at a time (the engine's step thread).
class ThreadPool {
 public:
  // `num_threads` >= 1 counts the caller. ResourceExhausted if the system gives
  // no more threads.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Create(int num_threads);
  // As Create, where the process may end if no thread can be started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(i) once for every i in [0, count) and returns when all are done.
  // The body must not call ParallelFor on the same pool.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t)> body);

 private:
  ThreadPool() = default;
  absl::Status Start(int num_threads);
  void WorkerLoop();
  void RunItems();

  std::vector<std::thread> workers_;

  // The loop in progress. body_ and count_ are written before remaining_ is set
  // and read only by a thread that took an item from it; the loop cannot end,
  // and so they cannot change, before that item is done. A worker that comes
  // late finds no item left, and no thread waits for it.
  const absl::FunctionRef<void(int64_t)>* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> remaining_{0};   // items not taken yet; may fall below 0
  std::atomic<int64_t> unfinished_{0};  // items not done yet

  // Counts loops, so that workers notice a new one.
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> stop_{false};
  // Workers that gave up spinning and sleep on wake_.
  std::atomic<int> sleepers_{0};
  Mutex mu_;
  CondVar wake_;
};

}  // namespace recurve

#endif  // RECURVE_BASE_THREAD_POOL_H_
