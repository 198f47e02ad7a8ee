#include "server/signal_thread.h"

#include <cstdlib>
#include <ctime>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "server/server.h"
#include "server/telemetry/process_log.h"
#include "spdlog/spdlog.h"

namespace recurve {

SignalThread::SignalThread() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

absl::StatusOr<std::unique_ptr<SignalThread>> SignalThread::Start() {
  auto signals = std::unique_ptr<SignalThread>(new SignalThread());
  RECURVE_ASSIGN_OR_RETURN(
      signals->thread_,
      StartThread("signals", [s = signals.get()] { s->Loop(); }));
  return signals;
}

SignalThread::~SignalThread() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void SignalThread::SetServer(Server* server) {
  MutexLock lock(&mu_);
  server_ = server;
}

void SignalThread::Loop() {
  const timespec poll = {0, 50'000'000};  // to check stop_
  while (!stop_.load()) {
    const int signal = sigtimedwait(&signals_, nullptr, &poll);
    if (signal > 0) Handle(signal);
  }
}

void SignalThread::Handle(int signal) {
  MutexLock lock(&mu_);
  if (server_ == nullptr || draining_) {
    spdlog::warn("signal {}: stopping at once", signal);
    FlushProcessLog();
    std::_Exit(128 + signal);
  }
  draining_ = true;
  server_->RequestDrain();
  spdlog::info("signal {}: draining; a second one stops at once", signal);
}

}  // namespace recurve
