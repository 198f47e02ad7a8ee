#include "base/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace recurve {

absl::StatusOr<std::thread> StartThread(absl::string_view what,
                                        std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system gave no thread for ", what, " (", error.what(),
                     "); its limit of processes or tasks is too low"));
  }
}

}  // namespace recurve
