#ifndef RECURVE_BASE_START_THREAD_H_
#define RECURVE_BASE_START_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// A thread that runs `run`, which is for `what` ("the engine"). To be joined.
// ResourceExhausted where the system gives none, as a control group or ulimit
// may have it.
absl::StatusOr<std::thread> StartThread(absl::string_view what,
                                        std::function<void()> run);

}  // namespace recurve

#endif  // RECURVE_BASE_START_THREAD_H_
