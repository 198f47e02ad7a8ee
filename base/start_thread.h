#ifndef RECURVE_BASE_START_THREAD_H_
#define RECURVE_BASE_START_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Starts a thread that executes `run`; `what` names its purpose ("the engine")
// in errors. The caller joins it. ResourceExhausted if the system refuses, e.g.
// by a cgroup limit or ulimit.
absl::StatusOr<std::thread> StartThread(absl::string_view what,
                                        std::function<void()> run);

// ResourceExhausted unless the system allows `count` more threads at the same
// time for `what`. For libraries that end the process when they cannot start a
// thread.
absl::Status CheckThreads(absl::string_view what, int count);

}  // namespace recurve

#endif  // RECURVE_BASE_START_THREAD_H_
