#ifndef RECURVE_CLIENT_LOADGEN_BENCH_RUNNER_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/lib/generation.h"
#include "client/lib/recurve_client.h"
#include "client/loadgen/bench_arrivals.h"
#include "client/loadgen/bench_latency.h"
#include "client/loadgen/bench_workload.h"

namespace recurve {

struct BenchOptions {
  // Closed loop: conversations open at a time, including those between two
  // turns; each has as many requests in flight as its tree has branches. Open
  // loop: requests in flight at a time; any further ones are sent late. >= 1.
  uint32_t concurrency = 16;
  // If set, an open loop: conversations begin at its times, independent of the
  // server.
  std::optional<ArrivalConfig> arrivals;
  // Between the end of one turn of a conversation and the next turn.
  absl::Duration think_time = absl::ZeroDuration();
  // No conversation is started after this many ...
  uint64_t num_requests = std::numeric_limits<uint64_t>::max();
  // ... nor this long after the first; nothing at all is sent ...
  absl::Duration start_for = absl::InfiniteDuration();
  // ... after this many requests have failed.
  uint64_t max_failures = 1000;
  // Deadline of each request.
  absl::Duration request_timeout = absl::InfiniteDuration();
};

enum class Outcome {
  kCompleted,  // status OK with a whole, well-formed stream
  kCancelled,  // by the client, as the workload specifies
  kFailed,     // anything else
};

struct RequestRecord {
  uint64_t index = 0;  // conversation in the workload
  uint32_t turn = 0;   // request in its tree (bench_tree.h)
  Outcome outcome = Outcome::kFailed;
  absl::Status status;
  // When it was sent, since the start of the run.
  double start_seconds = 0;
  // How late it was sent: after its arrival (open loop), or after the end of
  // its predecessor plus the think time.
  double send_lag_ms = 0;
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
  // Requests ended so far, in order of their end; valid during the call.
  const std::vector<RequestRecord>* records = nullptr;
};

struct BenchResult {
  // In the order in which requests ended.
  std::vector<RequestRecord> records;
  // From the first request sent to the last final status.
  double duration_seconds = 0;
  // Stop() was called, after stopped_seconds from the first request; the
  // requests that it cut off are not in `records`.
  bool stopped = false;
  double stopped_seconds = 0;
  uint64_t interrupted = 0;
  // max_failures was reached.
  bool gave_up = false;
};

// Closed loop: keeps `concurrency` streams open; as one ends, the next is sent.
// After UNAVAILABLE a stream waits first, longer each time until another status
// arrives: a restarting server would otherwise be called as fast as it can
// refuse, which would exhaust max_failures immediately.
// Open loop: sends each request when it is due. The streams run on gRPC's
// threads; the caller's thread only starts and collects them.
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

  // Sends conversations first_index, first_index + 1, … of the workload. Calls
  // on_progress on this thread, at least four times a second. To be called
  // once.
  BenchResult Run(uint64_t first_index,
                  absl::FunctionRef<void(const BenchProgress&)> on_progress);

  // Cancels the running requests and starts no more; Run then returns.
  void Stop();

 private:
  struct Slot;
  // A request to be sent.
  struct Due {
    // A new conversation; its index and later fields are not chosen yet.
    bool fresh = true;
    uint64_t index = 0;
    uint32_t turn = 0;
    std::vector<uint32_t> history;
    // Consecutive previous requests of the stream that ended with UNAVAILABLE.
    uint32_t unavailable = 0;
  };

  bool MayStart() const;
  bool MaySend() const;
  void ScheduleArrival();
  void SendDue();
  void DropIdle();
  void Start(const Due& due, BenchClock::time_point due_at);
  size_t FreeSlot();
  bool OnEvent(Slot* slot, const v1::GenerateEvent& event);
  void Collect(Slot* slot);
  void ScheduleNext(const Slot& slot, const RequestRecord& record);
  std::vector<size_t> WaitForEnded();
  void CancelRunning();
  BenchProgress Progress() const;

  const std::vector<RecurveClient*> clients_;
  const Workload* const workload_;
  const BenchOptions options_;
  const uint64_t most_running_;  // requests in flight

  // Used by the thread in Run only.
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<size_t> free_slots_;
  // Ordered by due time.
  std::multimap<BenchClock::time_point, Due> due_;
  std::unique_ptr<ArrivalSchedule> schedule_;  // null in a closed loop
  BenchClock::time_point begin_;
  uint64_t first_index_ = 0;
  uint64_t started_ = 0;  // conversations
  uint64_t sent_ = 0;     // requests
  uint64_t running_ = 0;
  // The requests in flight or due, by open conversation.
  std::map<uint64_t, uint64_t> open_requests_;
  uint64_t failed_ = 0;
  bool cancelled_running_ = false;
  bool dropped_idle_ = false;
  BenchResult result_;

  std::atomic<uint64_t> output_tokens_{0};
  std::atomic<bool> stop_{false};

  Mutex mu_;
  CondVar changed_;
  // Numbers of slots whose stream has ended.
  std::vector<size_t> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_RUNNER_H_
