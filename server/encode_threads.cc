#include "server/encode_threads.h"

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

absl::Status EncodeThreads::Add(const void* owner, int64_t bytes,
                                std::function<void()> work) {
  {
    MutexLock lock(&mu_);
    if (bytes_ + bytes > kMaxBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "texts of ", bytes_, " bytes wait to be encoded, and one of ", bytes,
          " bytes comes; this server takes ", kMaxBytes, " at a time"));
    }
    bytes_ += bytes;
    waiting_.push_back({owner, bytes, std::move(work)});
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool EncodeThreads::Remove(const void* owner) {
  Job job;  // destroyed without mu_: it may own the last of a call
  MutexLock lock(&mu_);
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [&](const Job& other) { return other.owner == owner; });
  if (found == waiting_.end()) return false;
  job = std::move(*found);
  waiting_.erase(found);
  bytes_ -= job.bytes;
  return true;
}

bool EncodeThreads::idle() const {
  MutexLock lock(&mu_);
  return waiting_.empty() && running_ == 0;
}

void EncodeThreads::Run() {
  while (true) {
    Job job;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stop_) changed_.Wait(&mu_);
      if (waiting_.empty()) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
    }
    job.work();
    job.work = nullptr;  // what it owns is gone before it counts as done
    MutexLock lock(&mu_);
    bytes_ -= job.bytes;
    --running_;
  }
}

}  // namespace recurve
