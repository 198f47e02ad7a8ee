#include "base/start_thread.h"

#include <sys/resource.h>
#include <sys/wait.h>
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

constexpr uid_t kNobodysUser = 61234;

// In a process of its own, for a user that may have no more threads (for root
// there is no such limit).
[[noreturn]] void StartWithoutRoom() {
  const rlimit none = {0, 0};
  if ((getuid() == 0 && setuid(kNobodysUser) != 0) ||
      setrlimit(RLIMIT_NPROC, &none) != 0) {
    std::perror("cannot set the limit");
    std::_Exit(2);
  }
  const absl::StatusOr<std::thread> thread = StartThread("a test", [] {});
  std::fprintf(stderr, "%s\n", thread.status().ToString().c_str());
  std::_Exit(thread.ok() ? 1
                         : 0);  // not by way of who starts threads at an end
}

TEST(StartThreadDeathTest, SaysThatTheSystemGivesNone) {
  const pid_t other = fork();
  if (other == 0) {
    std::_Exit(getuid() == 0 && setuid(kNobodysUser) != 0 ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  if (status != 0) GTEST_SKIP() << "root may not become another user here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartWithoutRoom(), testing::ExitedWithCode(0),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED"),
                    HasSubstr("the system gave no thread for a test")));
}

TEST(StartThreadTest, ThreadsAreThereAtATime) {
  EXPECT_TRUE(CheckThreads("a test", 0).ok());
  EXPECT_TRUE(CheckThreads("a test", 5).ok());
}

}  // namespace
}  // namespace recurve
