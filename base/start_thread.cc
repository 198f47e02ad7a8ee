#include "base/start_thread.h"

#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace recurve {

absl::StatusOr<std::thread> StartThread(absl::string_view what,
                                        std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system gave no thread for ", what, " (", error.what(),
                     "); its limit of processes or tasks may be too low"));
  }
}

absl::Status CheckThreads(absl::string_view what, int count) {
  absl::Notification all;
  std::vector<std::thread> threads;
  absl::Status status;
  while (status.ok() && static_cast<int>(threads.size()) < count) {
    absl::StatusOr<std::thread> thread =
        StartThread(what, [&all] { all.WaitForNotification(); });
    status = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  all.Notify();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace recurve
