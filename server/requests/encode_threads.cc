#include "server/requests/encode_threads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace recurve {

absl::StatusOr<std::unique_ptr<EncodeThreads>> EncodeThreads::Start() {
  auto threads = std::unique_ptr<EncodeThreads>(new EncodeThreads());
  for (int i = 0; i < kThreads; ++i) {
    RECURVE_ASSIGN_OR_RETURN(
        std::thread thread,
        StartThread("texts", [t = threads.get()] { t->Run(); }));
    threads->threads_.push_back(std::move(thread));
  }
  return threads;
}

EncodeThreads::~EncodeThreads() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status EncodeThreads::Add(const void* owner, const Flow& flow,
                                int64_t bytes, std::function<void()> work) {
  {
    MutexLock lock(&mu_);
    if (bytes > bytes_.Left(flow)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "texts of ", bytes_.used(), " bytes wait to be encoded, and one of ",
          bytes, " bytes comes; this server takes ", kMaxBytes, " at a time",
          flow.part < 1 ? ", and half of these it keeps for the tenants' shares"
                        : ""));
    }
    bytes_.Take(flow, bytes);
    const auto [line, is_new] = waiting_.try_emplace(flow.id);
    if (is_new) line->second.had = had_;
    line->second.jobs.push_back({owner, flow, bytes, std::move(work)});
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool EncodeThreads::Remove(const void* owner) {
  Job job;  // destroyed without mu_: it may own the last reference to a call
  MutexLock lock(&mu_);
  for (auto line = waiting_.begin(); line != waiting_.end(); ++line) {
    std::deque<Job>& jobs = line->second.jobs;
    const auto found =
        std::find_if(jobs.begin(), jobs.end(),
                     [&](const Job& other) { return other.owner == owner; });
    if (found == jobs.end()) continue;
    job = std::move(*found);
    jobs.erase(found);
    if (jobs.empty()) waiting_.erase(line);
    bytes_.Give(job.flow, job.bytes);
    return true;
  }
  return false;
}

bool EncodeThreads::idle() const {
  MutexLock lock(&mu_);
  return waiting_.empty() && running_ == 0;
}

EncodeThreads::Job EncodeThreads::TakeNext() {
  const auto next = std::min_element(
      waiting_.begin(), waiting_.end(),
      [](const auto& a, const auto& b) { return a.second.had < b.second.had; });
  Line& line = next->second;
  Job job = std::move(line.jobs.front());
  line.jobs.pop_front();
  had_ = line.had;
  line.had += static_cast<double>(job.bytes) / job.flow.weight;
  if (line.jobs.empty()) waiting_.erase(next);
  return job;
}

void EncodeThreads::Run() {
  while (true) {
    Job job;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stop_) changed_.Wait(&mu_);
      if (waiting_.empty()) return;
      job = TakeNext();
      ++running_;
    }
    job.work();
    job.work = nullptr;  // its objects are destroyed before it counts as done
    MutexLock lock(&mu_);
    bytes_.Give(job.flow, job.bytes);
    --running_;
  }
}

}  // namespace recurve
