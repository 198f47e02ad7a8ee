#ifndef RECURVE_SERVER_SIGNAL_THREAD_H_
#define RECURVE_SERVER_SIGNAL_THREAD_H_

#include <signal.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace recurve {

class Server;

// Handles SIGTERM and SIGINT on a separate thread: the first one drains the
// server; a second one, or one that comes before there is a server, ends the
// process immediately with 128 + its number.
//
// Start it before any other thread: it blocks the signals, and threads inherit
// that.
class SignalThread {
 public:
  // ResourceExhausted if the system refuses a thread.
  static absl::StatusOr<std::unique_ptr<SignalThread>> Start();
  ~SignalThread();

  // The server to drain; null if there is none any more. Thread-safe.
  void SetServer(Server* server);

 private:
  SignalThread();

  void Loop();
  void Handle(int signal);

  sigset_t signals_;
  std::atomic<bool> stop_{false};
  Mutex mu_;
  Server* server_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SIGNAL_THREAD_H_
