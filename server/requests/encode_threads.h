#ifndef RECURVE_SERVER_REQUESTS_ENCODE_THREADS_H_
#define RECURVE_SERVER_REQUESTS_ENCODE_THREADS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/serving/fair_places.h"
#include "engine/serving/request.h"

namespace recurve {

// The threads that tokenize long texts. A text of megabytes takes seconds,
// which must not block the shared threads of HTTP and gRPC.
//
// Thread safety: all methods may be called from any thread.
class EncodeThreads {
 public:
  // A text of at most this size takes at most a millisecond or two: it is
  // encoded on the calling thread.
  static constexpr int64_t kShortBytes = 4 << 10;
  // Limit on texts waiting and in progress. Encoding takes up to some 80 times
  // the text in memory, and up to some 700 MiB if a split pattern repeats a
  // group (SplitPattern), but only for the texts in progress, one per thread.
  static constexpr int64_t kMaxBytes = 64 << 20;
  static constexpr int kThreads = 2;

  // ResourceExhausted if the system refuses a thread.
  static absl::StatusOr<std::unique_ptr<EncodeThreads>> Start();
  // Completes all waiting work first.
  ~EncodeThreads();
  EncodeThreads(const EncodeThreads&) = delete;
  EncodeThreads& operator=(const EncodeThreads&) = delete;

  // Runs `work`, which encodes `bytes` of text, in its turn: flows take turns
  // by the bytes encoded for them, divided by their weights; work of one flow
  // runs in the order of the calls. ResourceExhausted if too much is waiting;
  // flows share kMaxBytes (fair_places.h). `owner` identifies the work in
  // Remove; an owner has one work at a time.
  absl::Status Add(const void* owner, const Flow& flow, int64_t bytes,
                   std::function<void()> work);
  // Cancels and destroys the work of `owner` if it has not begun. False: there
  // is none, or it has begun.
  bool Remove(const void* owner);

  // Whether no work waits or runs.
  bool idle() const;

 private:
  EncodeThreads() = default;

  struct Job {
    const void* owner = nullptr;
    Flow flow;
    int64_t bytes = 0;
    std::function<void()> work;
  };
  // The waiting jobs of one flow, and the bytes encoded for it, by weight;
  // after an idle period, at least the smallest such number.
  struct Line {
    std::deque<Job> jobs;
    double had = 0;
  };

  void Run();
  Job TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::map<uint32_t, Line> waiting_ ABSL_GUARDED_BY(mu_);  // none is empty
  double had_ ABSL_GUARDED_BY(mu_) = 0;  // `had` of the flow served last
  FairPlaces bytes_ ABSL_GUARDED_BY(mu_){kMaxBytes};  // for all jobs, also
                                                      // those in progress
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_ENCODE_THREADS_H_
