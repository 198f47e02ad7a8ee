#ifndef RECURVE_BASE_START_THREAD_H_
#define RECURVE_BASE_START_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// A thread that runs `run`, which is for `what` ("the engine"). To be joined.
// ResourceExhausted where the system gives none, as a control group or ulimit
// may have it.
absl::StatusOr<std::thread> StartThread(absl::string_view what,
                                        std::function<void()> run);

// Whether the system gives `count` threads at a time for `what`, besides those
// that there are. For libraries that end the process where it gives them none.
absl::Status CheckThreads(absl::string_view what, int count);

}  // namespace recurve

#endif  // RECURVE_BASE_START_THREAD_H_
