#include <signal.h>

#include "absl/synchronization/mutex.h"
#include "client/cli/cli.h"

int main(int argc, char** argv) {
  // Debian's Abseil checks for deadlocks at every lock that gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // A reader that has gone away is a write error: the other results are still
  // to be written.
  signal(SIGPIPE, SIG_IGN);
  return recurve::RunClient(argc, argv);
}
