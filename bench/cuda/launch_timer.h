#ifndef RECURVE_BENCH_CUDA_LAUNCH_TIMER_H_
#define RECURVE_BENCH_CUDA_LAUNCH_TIMER_H_

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/cuda_executor.h"

namespace recurve {

// Measures each launch of an executor's steps on its stream. The stream is held
// until all of a step is queued, so that host time does not count. A step must
// fit the stream's queue: use a model of few layers, and no graphs.
class LaunchTimer : public LaunchProbe {
 public:
  explicit LaunchTimer(cudaStream_t stream) : stream_(stream) {
    cudaStreamCreateWithFlags(&gate_stream_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&gate_, cudaEventDisableTiming);
  }

  ~LaunchTimer() override {
    Release();
    cudaStreamSynchronize(gate_stream_);
  }

  // Microseconds of each launch of the steps since Clear(), by name.
  const std::map<std::string, std::vector<double>>& times() const {
    return times_;
  }
  void Clear() { times_.clear(); }
  // Another batch follows: the stream is not held for two steps.
  void Restart() { steps_ = 0; }
  // The step has ended.
  void Collect() {
    Release();
    cudaStreamSynchronize(stream_);
    for (const Span& span : spans_) {
      float ms = 0;
      cudaEventElapsedTime(&ms, span.begin, span.end);
      times_[span.name].push_back(1e3 * ms);
      free_.push_back(span.begin);
      free_.push_back(span.end);
    }
    spans_.clear();
  }

  void BeforeStep() override {
    // First steps allocate, which waits for the stream.
    if (++steps_ <= 2) return;
    {
      const std::lock_guard lock(mu_);
      held_ = true;
    }
    cudaLaunchHostFunc(gate_stream_, &LaunchTimer::Hold, this);
    cudaEventRecord(gate_, gate_stream_);
    cudaStreamWaitEvent(stream_, gate_);
  }
  void Before(const std::string& name) override {
    // The head may allocate.
    if (name == "head") Release();
    spans_.push_back({name, NewEvent(), nullptr});
  }
  void After() override { spans_.back().end = NewEvent(); }
  void AfterStep() override { Release(); }

 private:
  struct Span {
    std::string name;
    cudaEvent_t begin, end;
  };

  static void Hold(void* self) {
    auto* const timer = static_cast<LaunchTimer*>(self);
    std::unique_lock lock(timer->mu_);
    timer->changed_.wait(lock, [timer] { return !timer->held_; });
  }
  // Lets the stream continue.
  void Release() {
    {
      const std::lock_guard lock(mu_);
      held_ = false;
    }
    changed_.notify_all();
  }
  cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      cudaEventCreate(&event);
    } else {
      event = free_.back();
      free_.pop_back();
    }
    cudaEventRecord(event, stream_);
    return event;
  }

  const cudaStream_t stream_;
  std::vector<Span> spans_;
  std::vector<cudaEvent_t> free_;
  std::map<std::string, std::vector<double>> times_;
  cudaStream_t gate_stream_ = nullptr;
  cudaEvent_t gate_ = nullptr;
  std::mutex mu_;
  std::condition_variable changed_;
  bool held_ = false;
  int steps_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_LAUNCH_TIMER_H_
