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

// The threads that make tokens of long texts. A text of megabytes takes
// seconds, which the threads of HTTP and gRPC, which serve everybody, do not
// have.
//
// Thread safety: all methods may be called from any thread.
class EncodeThreads {
 public:
  // A text of so many bytes takes less than a millisecond or two: whoever has
  // it encodes it.
  static constexpr int64_t kShortBytes = 4 << 10;
  // What may wait and be at work at a time. Encoding takes up to some 80 times
  // the text in memory, and up to some 700 MiB where a split pattern repeats a
  // group (SplitPattern), but only of the texts at work, one a thread.
  static constexpr int64_t kMaxBytes = 64 << 20;
  static constexpr int kThreads = 2;

  // ResourceExhausted where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<EncodeThreads>> Start();
  // Does what still waits first.
  ~EncodeThreads();
  EncodeThreads(const EncodeThreads&) = delete;
  EncodeThreads& operator=(const EncodeThreads&) = delete;

  // Runs `work`, which encodes `bytes` of text, when its turn comes: flows take
  // turns by the bytes they had, divided by their weights; one's own are run in
  // the order of the calls. ResourceExhausted when too much waits; flows share
  // kMaxBytes (fair_places.h). `owner` is what Remove calls it by: it has one
  // work at a time.
  absl::Status Add(const void* owner, const Flow& flow, int64_t bytes,
                   std::function<void()> work);
  // Takes the work of `owner` back if it has not begun; it is destroyed then.
  // False: there is none, or it has begun.
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
  // One flow's that wait, and what it had, by weight, as of now or, if it had
  // none for a while, as much as the one that had least.
  struct Line {
    std::deque<Job> jobs;
    double had = 0;
  };

  void Run();
  Job TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::map<uint32_t, Line> waiting_ ABSL_GUARDED_BY(mu_);  // none is empty
  double had_ ABSL_GUARDED_BY(mu_) = 0;  // by the flow that was last served
  FairPlaces bytes_ ABSL_GUARDED_BY(mu_){kMaxBytes};  // of all, at work too
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_ENCODE_THREADS_H_
