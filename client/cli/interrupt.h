#ifndef RECURVE_CLIENT_CLI_INTERRUPT_H_
#define RECURVE_CLIENT_CLI_INTERRUPT_H_

#include <functional>
#include <thread>

namespace recurve {

// While an object exists, the first SIGINT, SIGTERM or SIGHUP calls
// `on_interrupt` on a separate thread (so it may lock and call gRPC). A second
// SIGINT or SIGTERM ends the process by its default action; a second SIGHUP is
// ignored, because a closing terminal may send several. SIGHUP stays ignored if
// it already was (nohup). The destructor restores the former handlers; after a
// SIGHUP it leaves SIGHUP ignored, since another may arrive while results are
// written.
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
