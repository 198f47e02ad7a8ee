#include "base/start_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(StartThreadTest, Runs) {
  std::atomic<bool> ran{false};
  absl::StatusOr<std::thread> thread =
      StartThread("a test", [&] { ran = true; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_TRUE(ran);
}

// In a process of its own, for a user that may have no more threads (for root
// there is no such limit).
[[noreturn]] void StartWithoutRoom() {
  constexpr uid_t kNobodysUser = 61234;
  const rlimit none = {0, 0};
  if ((getuid() == 0 && setuid(kNobodysUser) != 0) ||
      setrlimit(RLIMIT_NPROC, &none) != 0) {
    std::perror("cannot set the limit");
    std::exit(2);
  }
  const absl::StatusOr<std::thread> thread = StartThread("a test", [] {});
  std::fprintf(stderr, "%s\n", thread.status().ToString().c_str());
  std::exit(thread.ok() ? 1 : 0);
}

TEST(StartThreadDeathTest, SaysThatTheSystemGivesNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartWithoutRoom(), testing::ExitedWithCode(0),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED"),
                    HasSubstr("the system gave no thread for a test")));
}

}  // namespace
}  // namespace recurve
