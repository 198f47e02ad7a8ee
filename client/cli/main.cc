#include <signal.h>

#include "absl/synchronization/mutex.h"
#include "client/cli/cli.h"

int main(int argc, char** argv) {
  // Debian's Abseil looks for deadlocks at every lock that gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // A reader that is gone is an error of the write: what else was measured is
  // still to be written.
  signal(SIGPIPE, SIG_IGN);
  return recurve::RunClient(argc, argv);
}
