#ifndef RECURVE_CLIENT_BENCH_RUNNER_H_
#define RECURVE_CLIENT_BENCH_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/bench_latency.h"
#include "client/bench_workload.h"
#include "client/generation.h"
#include "client/recurve_client.h"

namespace recurve {

struct BenchOptions {
  // Streams open at a time, >= 1.
  uint32_t concurrency = 16;
  // No request is started after this many ...
  uint64_t num_requests = std::numeric_limits<uint64_t>::max();
  // ... nor this long after the first ...
  absl::Duration start_for = absl::InfiniteDuration();
  // ... nor after this many have failed (a dead server would otherwise be asked
  // as fast as it can refuse).
  uint64_t max_failures = 1000;
  // Deadline of each request.
  absl::Duration request_timeout = absl::InfiniteDuration();
};

enum class Outcome {
  kCompleted,  // status OK with a whole, well-formed stream
  kCancelled,  // by the client, as the workload wanted
  kFailed,     // anything else
};

struct RequestRecord {
  uint64_t index = 0;  // in the workload
  Outcome outcome = Outcome::kFailed;
  absl::Status status;
  // Since the run began.
  double start_seconds = 0;
  uint32_t prompt_tokens = 0;
  uint32_t max_new_tokens = 0;
  Generation generation;
  RequestLatency latency;
};

struct BenchProgress {
  double elapsed_seconds = 0;
  uint64_t ended = 0;
  uint64_t running = 0;
  uint64_t failed = 0;
  uint64_t output_tokens = 0;
};

struct BenchResult {
  // In the order in which requests ended.
  std::vector<RequestRecord> records;
  // From the first request sent to the last final status.
  double duration_seconds = 0;
  // Stop() was called: requests cut off by it are not in `records`.
  bool stopped = false;
  // max_failures was reached.
  bool gave_up = false;
};

// Keeps `concurrency` streams open: as one ends, the next is sent. The streams
// run on gRPC's threads; the caller's thread only starts and collects them.
//
// Thread safety: Stop may be called from any thread, also before Run.
class BenchRunner {
 public:
  // REQUIRES: clients not empty (requests take turns on them); they and
  // *workload outlive the object.
  BenchRunner(std::vector<RecurveClient*> clients, const Workload* workload,
              const BenchOptions& options);
  ~BenchRunner();
  BenchRunner(const BenchRunner&) = delete;
  BenchRunner& operator=(const BenchRunner&) = delete;

  // Sends requests first_index, first_index + 1, … of the workload. Calls
  // on_progress on this thread, at least four times a second. Once only.
  BenchResult Run(uint64_t first_index,
                  absl::FunctionRef<void(const BenchProgress&)> on_progress);

  // Cancels what is running and starts nothing more; Run then returns.
  void Stop();

 private:
  struct Slot;

  bool MayStart(BenchClock::time_point now) const;
  void Start(size_t slot_number, BenchClock::time_point now);
  bool OnEvent(Slot* slot, const v1::GenerateEvent& event);
  void Collect(Slot* slot);
  std::vector<size_t> WaitForEnded();
  void CancelRunning();
  BenchProgress Progress() const;

  const std::vector<RecurveClient*> clients_;
  const Workload* const workload_;
  const BenchOptions options_;

  // Of the thread in Run.
  std::vector<std::unique_ptr<Slot>> slots_;
  BenchClock::time_point begin_;
  uint64_t first_index_ = 0;
  uint64_t started_ = 0;
  uint64_t running_ = 0;
  uint64_t failed_ = 0;
  bool cancelled_running_ = false;
  BenchResult result_;

  std::atomic<uint64_t> output_tokens_{0};
  std::atomic<bool> stop_{false};

  Mutex mu_;
  CondVar changed_;
  // Numbers of slots whose stream has ended.
  std::vector<size_t> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_BENCH_RUNNER_H_
