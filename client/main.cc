#include "absl/synchronization/mutex.h"
#include "client/cli.h"

int main(int argc, char** argv) {
  // Debian's Abseil looks for deadlocks at every lock that gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return recurve::RunClient(argc, argv);
}
