#ifndef RECURVE_CLIENT_CLI_INTERRUPT_H_
#define RECURVE_CLIENT_CLI_INTERRUPT_H_

#include <functional>
#include <thread>

namespace recurve {

// While one exists, the first SIGINT, SIGTERM or SIGHUP calls `on_interrupt` on
// a thread of its own (so it may lock and call gRPC). A second SIGINT or
// SIGTERM ends the process, as without it; a second SIGHUP does nothing, for a
// terminal that closes may send several. SIGHUP stays ignored where it is
// (nohup). The destructor puts the former handlers back; after a SIGHUP it is
// ignored, since the next may come while results are written.
//
// At most one at a time in a process.
class Interrupt {
 public:
  explicit Interrupt(std::function<void()> on_interrupt);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  void Watch();

  const std::function<void()> on_interrupt_;
  int read_end_ = -1;
  int write_end_ = -1;
  std::thread watcher_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_INTERRUPT_H_
