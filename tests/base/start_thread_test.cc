#include "base/start_thread.h"

#include <pthread.h>

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(StartThreadTest, Runs) {
  std::atomic<bool> ran{false};
  absl::StatusOr<std::thread> thread =
      StartThread("a test", [&] { ran = true; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_TRUE(ran);
}

// No system has room for such a stack.
TEST(StartThreadTest, SaysThatTheSystemGivesNone) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 62), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto thread = StartThread("a test", [] {});
  const absl::Status several = CheckThreads("some tests", 3);
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(thread.status())) << thread.status();
  EXPECT_THAT(thread.status().message(),
              testing::HasSubstr("the system gave no thread for a test ("));
  EXPECT_TRUE(absl::IsResourceExhausted(several)) << several;
}

TEST(StartThreadTest, ThreadsAreThereAtATime) {
  EXPECT_TRUE(CheckThreads("a test", 0).ok());
  EXPECT_TRUE(CheckThreads("a test", 5).ok());
}

}  // namespace
}  // namespace recurve
