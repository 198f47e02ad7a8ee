#include "client/loadgen/bench_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace recurve {
namespace {

constexpr std::chrono::milliseconds kTick(200);
// In seconds. Later arrivals, e.g. at a tiny rate, are due at this time: the
// clock cannot represent them, and no run lasts that long.
constexpr double kLastArrival = 1e9;
// How long a stream of a closed loop waits after UNAVAILABLE, doubled each
// time. The maximum is about the channel's own reconnect delay.
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(5);

double Seconds(BenchClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

absl::Duration PauseAfter(uint32_t unavailable) {
  if (unavailable == 0) return absl::ZeroDuration();
  // 2^10 times the first is above the maximum.
  const uint32_t doublings = std::min(unavailable - 1, uint32_t{10});
  return std::min(kLongestPause, kFirstPause * (1 << doublings));
}

}  // namespace

// One of the streams that may be open. The stream's callbacks write to it until
// its number is in ended_; the thread in Run accesses it before and after.
struct BenchRunner::Slot {
  RequestRecord record;
  // The history of those.
  std::vector<uint32_t> prompt;
  // The requests of the tree that go on from this one.
  std::vector<uint32_t> children;
  uint32_t unavailable = 0;  // as in Due
  uint32_t cancel_after_tokens = 0;
  bool cancel_sent = false;
  // The first invalid event.
  absl::Status stream_error;
  BenchClock::time_point sent;
  BenchClock::time_point ended;
  std::vector<TokenArrival> arrivals;
  // Last, so that it is destroyed, and the call over, before the other members.
  std::unique_ptr<GenerateStream> stream;
};

BenchRunner::BenchRunner(std::vector<RecurveClient*> clients,
                         const Workload* workload, const BenchOptions& options)
    : clients_(std::move(clients)),
      workload_(workload),
      options_(options),
      most_running_(options.concurrency *
                    (options.arrivals.has_value() ? 1 : workload->MostOpen())) {
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
  RECURVE_CHECK(sent_ == 0);
  first_index_ = first_index;
  begin_ = BenchClock::now();
  BenchClock::time_point last_end = begin_;
  if (options_.arrivals.has_value()) {
    schedule_ = std::make_unique<ArrivalSchedule>(*options_.arrivals);
    ScheduleArrival();
  } else {
    for (uint32_t i = 0; i < options_.concurrency; ++i) {
      due_.emplace(begin_, Due());
    }
  }
  for (;;) {
    SendDue();
    if (running_ == 0 && due_.empty()) break;
    for (const size_t i : WaitForEnded()) {
      last_end = std::max(last_end, slots_[i]->ended);
      Collect(slots_[i].get());
      slots_[i].reset();
      free_slots_.push_back(i);
    }
    if (stop_.load()) CancelRunning();
    on_progress(Progress());
  }
  result_.duration_seconds = Seconds(last_end - begin_);
  result_.stopped = stop_.load();
  // No request was running.
  if (result_.stopped && !cancelled_running_) {
    result_.stopped_seconds = Seconds(BenchClock::now() - begin_);
  }
  result_.gave_up = failed_ >= options_.max_failures;
  return std::move(result_);
}

bool BenchRunner::MaySend() const {
  return !stop_.load() && failed_ < options_.max_failures;
}

// Whether another conversation may start now.
bool BenchRunner::MayStart() const {
  return MaySend() && started_ < options_.num_requests &&
         absl::FromChrono(BenchClock::now() - begin_) < options_.start_for;
}

void BenchRunner::ScheduleArrival() {
  // One arrival at a time is in due_; it is not counted in started_.
  const std::optional<double> seconds = schedule_->Next();
  if (!seconds.has_value() || started_ >= options_.num_requests ||
      absl::Seconds(*seconds) >= options_.start_for) {
    return;
  }
  const std::chrono::duration<double> after(std::min(*seconds, kLastArrival));
  due_.emplace(begin_ + std::chrono::duration_cast<BenchClock::duration>(after),
               Due());
}

void BenchRunner::SendDue() {
  if (!MaySend()) due_.clear();
  DropIdle();
  while (!due_.empty() && due_.begin()->first <= BenchClock::now() &&
         running_ < most_running_) {
    auto node = due_.extract(due_.begin());
    Due due = std::move(node.mapped());
    if (due.fresh) {
      // An arrival that was due in time is sent even if late.
      if (schedule_ == nullptr && !MayStart()) continue;
      due.index = first_index_ + started_;
      ++started_;
      open_requests_[due.index] = 1;
      if (schedule_ != nullptr) ScheduleArrival();
    }
    Start(due, node.key());
  }
}

// Drops streams that wait after UNAVAILABLE once no conversation may start.
void BenchRunner::DropIdle() {
  if (schedule_ != nullptr || dropped_idle_ || MayStart()) return;
  dropped_idle_ = true;
  std::erase_if(due_, [](const auto& entry) { return entry.second.fresh; });
}

size_t BenchRunner::FreeSlot() {
  if (free_slots_.empty()) {
    slots_.emplace_back();
    return slots_.size() - 1;
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void BenchRunner::Start(const Due& due, BenchClock::time_point due_at) {
  const size_t slot_number = FreeSlot();
  slots_[slot_number] = std::make_unique<Slot>();
  Slot* const slot = slots_[slot_number].get();
  const WorkItem item = workload_->MakeTurn(due.index, due.turn, due.history);
  slot->cancel_after_tokens = item.cancel_after_tokens;
  slot->unavailable = due.unavailable;
  slot->children = workload_->Tree(due.index).Children(due.turn);
  const auto& prompt = item.request.prompt_ids().ids();
  if (!slot->children.empty())
    slot->prompt.assign(prompt.begin(), prompt.end());
  slot->record.index = due.index;
  slot->record.turn = due.turn;
  slot->record.prompt_tokens = prompt.size();
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
  RecurveClient* const client = clients_[sent_ % clients_.size()];
  ++sent_;
  ++running_;
  slot->sent = BenchClock::now();
  slot->record.start_seconds = Seconds(slot->sent - begin_);
  slot->record.send_lag_ms = 1000 * Seconds(slot->sent - due_at);
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
  if (was_cancelled && cancelled_running_ && !slot->cancel_sent) {
    ++result_.interrupted;
    return;
  }
  // A stream that ended before the cancellation reached the server completed.
  record.outcome = record.status.ok()                   ? Outcome::kCompleted
                   : was_cancelled && slot->cancel_sent ? Outcome::kCancelled
                                                        : Outcome::kFailed;
  if (record.outcome == Outcome::kFailed) ++failed_;
  record.latency = ComputeLatency(slot->sent, slot->arrivals, slot->ended);
  ScheduleNext(*slot, record);
  result_.records.push_back(std::move(record));
}

// Schedules what follows a request: those that go on from it, else, if it is
// the last of its conversation in a closed loop, another conversation.
void BenchRunner::ScheduleNext(const Slot& slot, const RequestRecord& record) {
  const auto open = open_requests_.find(record.index);
  if (record.outcome == Outcome::kCompleted && !slot.children.empty()) {
    Due next;
    next.fresh = false;
    next.index = record.index;
    next.history = slot.prompt;
    next.history.insert(next.history.end(), record.generation.token_ids.begin(),
                        record.generation.token_ids.end());
    for (const uint32_t child : slot.children) {
      next.turn = child;
      ++open->second;
      due_.emplace(slot.ended + absl::ToChronoNanoseconds(options_.think_time),
                   next);
    }
  }
  if (--open->second > 0) return;
  open_requests_.erase(open);
  if (schedule_ == nullptr && MayStart()) {
    Due next;
    if (absl::IsUnavailable(record.status)) {
      next.unavailable = slot.unavailable + 1;
    }
    due_.emplace(
        slot.ended + absl::ToChronoNanoseconds(PauseAfter(next.unavailable)),
        std::move(next));
  }
}

std::vector<size_t> BenchRunner::WaitForEnded() {
  std::chrono::nanoseconds timeout = kTick;
  if (!due_.empty() && running_ < most_running_) {
    timeout = std::clamp<std::chrono::nanoseconds>(
        due_.begin()->first - BenchClock::now(), std::chrono::nanoseconds(0),
        kTick);
  }
  MutexLock lock(&mu_);
  // A stop is handled immediately; after that only the end is awaited.
  const bool stop_is_new = stop_.load() && !cancelled_running_;
  if (ended_.empty() && !stop_is_new) changed_.WaitFor(&mu_, timeout);
  return std::exchange(ended_, {});
}

void BenchRunner::CancelRunning() {
  if (cancelled_running_) return;
  cancelled_running_ = true;
  result_.stopped_seconds = Seconds(BenchClock::now() - begin_);
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
  progress.records = &result_.records;
  return progress;
}

}  // namespace recurve
