#include "client/bench_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace recurve {
namespace {

constexpr std::chrono::milliseconds kTick(200);

double Seconds(BenchClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

// One of the streams that may be open. The stream's callbacks write to it until
// its number is in ended_; the thread in Run touches it before and after.
struct BenchRunner::Slot {
  RequestRecord record;
  uint32_t cancel_after_tokens = 0;
  bool cancel_sent = false;
  // The first event that made no sense.
  absl::Status stream_error;
  BenchClock::time_point sent;
  BenchClock::time_point ended;
  std::vector<TokenArrival> arrivals;
  // Last, so that it is destroyed, and the call over, before the rest.
  std::unique_ptr<GenerateStream> stream;
};

BenchRunner::BenchRunner(std::vector<RecurveClient*> clients,
                         const Workload* workload, const BenchOptions& options)
    : clients_(std::move(clients)), workload_(workload), options_(options) {
  RECURVE_CHECK(!clients_.empty() && options_.concurrency >= 1);
}

BenchRunner::~BenchRunner() = default;

void BenchRunner::Stop() {
  stop_.store(true);
  MutexLock lock(&mu_);
  changed_.NotifyAll();
}

BenchResult BenchRunner::Run(
    uint64_t first_index,
    absl::FunctionRef<void(const BenchProgress&)> on_progress) {
  RECURVE_CHECK(started_ == 0);
  first_index_ = first_index;
  slots_.resize(options_.concurrency);
  begin_ = BenchClock::now();
  BenchClock::time_point last_end = begin_;
  const auto start_if_due = [this](size_t slot) {
    const BenchClock::time_point now = BenchClock::now();
    if (MayStart(now)) Start(slot, now);
  };
  for (size_t i = 0; i < slots_.size(); ++i) start_if_due(i);
  while (running_ > 0) {
    for (const size_t i : WaitForEnded()) {
      last_end = std::max(last_end, slots_[i]->ended);
      Collect(slots_[i].get());
      slots_[i].reset();
      start_if_due(i);
    }
    if (stop_.load()) CancelRunning();
    on_progress(Progress());
  }
  result_.duration_seconds = Seconds(last_end - begin_);
  result_.stopped = stop_.load();
  result_.gave_up = failed_ >= options_.max_failures;
  return std::move(result_);
}

bool BenchRunner::MayStart(BenchClock::time_point now) const {
  return !stop_.load() && started_ < options_.num_requests &&
         failed_ < options_.max_failures &&
         absl::FromChrono(now - begin_) < options_.start_for;
}

void BenchRunner::Start(size_t slot_number, BenchClock::time_point now) {
  slots_[slot_number] = std::make_unique<Slot>();
  Slot* const slot = slots_[slot_number].get();
  const uint64_t index = first_index_ + started_;
  const WorkItem item = workload_->Make(index);
  slot->cancel_after_tokens = item.cancel_after_tokens;
  slot->record.index = index;
  slot->record.start_seconds = Seconds(now - begin_);
  slot->record.prompt_tokens = item.request.prompt_ids().ids_size();
  slot->record.max_new_tokens = item.request.stopping().max_new_tokens();
  GenerateStream::Callbacks callbacks;
  callbacks.on_event = [this, slot](const v1::GenerateEvent& event) {
    return OnEvent(slot, event);
  };
  callbacks.on_done = [this, slot, slot_number](const absl::Status& status) {
    slot->ended = BenchClock::now();
    slot->record.status = status;
    MutexLock lock(&mu_);
    ended_.push_back(slot_number);
    changed_.NotifyAll();
  };
  RecurveClient* const client = clients_[started_ % clients_.size()];
  ++started_;
  ++running_;
  slot->sent = BenchClock::now();
  slot->stream = client->StartGenerate(item.request, std::move(callbacks),
                                       options_.request_timeout);
}

bool BenchRunner::OnEvent(Slot* slot, const v1::GenerateEvent& event) {
  const BenchClock::time_point now = BenchClock::now();
  Generation& generation = slot->record.generation;
  if (slot->stream_error.ok()) slot->stream_error = generation.Add(event);
  if (!slot->stream_error.ok()) return false;
  if (event.has_tokens() && event.tokens().ids_size() > 0) {
    const uint32_t count = event.tokens().ids_size();
    slot->arrivals.push_back({now, count});
    output_tokens_.fetch_add(count);
  }
  if (slot->cancel_after_tokens > 0 && !generation.finished &&
      generation.token_ids.size() >= slot->cancel_after_tokens) {
    slot->cancel_sent = true;
    return false;
  }
  return true;
}

void BenchRunner::Collect(Slot* slot) {
  slot->stream.reset();
  --running_;
  RequestRecord& record = slot->record;
  if (!slot->stream_error.ok()) {
    record.status = slot->stream_error;
  } else if (record.status.ok()) {
    record.status = record.generation.CheckFinished();
  }
  const bool was_cancelled = absl::IsCancelled(record.status);
  if (was_cancelled && cancelled_running_ && !slot->cancel_sent) return;
  // A stream that ended before the cancellation reached the server completed.
  record.outcome = record.status.ok()                   ? Outcome::kCompleted
                   : was_cancelled && slot->cancel_sent ? Outcome::kCancelled
                                                        : Outcome::kFailed;
  if (record.outcome == Outcome::kFailed) ++failed_;
  record.latency = ComputeLatency(slot->sent, slot->arrivals, slot->ended);
  result_.records.push_back(std::move(record));
}

std::vector<size_t> BenchRunner::WaitForEnded() {
  MutexLock lock(&mu_);
  if (ended_.empty()) changed_.WaitFor(&mu_, kTick);
  return std::exchange(ended_, {});
}

void BenchRunner::CancelRunning() {
  if (cancelled_running_) return;
  cancelled_running_ = true;
  for (const auto& slot : slots_) {
    if (slot != nullptr) slot->stream->Cancel();
  }
}

BenchProgress BenchRunner::Progress() const {
  BenchProgress progress;
  progress.elapsed_seconds = Seconds(BenchClock::now() - begin_);
  progress.ended = result_.records.size();
  progress.running = running_;
  progress.failed = failed_;
  progress.output_tokens = output_tokens_.load();
  return progress;
}

}  // namespace recurve
