#include "base/thread_pool.h"

#include <pthread.h>

#include <chrono>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryItemOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 64, 1000}) {
    std::vector<int> runs(count, 0);
    pool.ParallelFor(count, [&](int64_t i) { ++runs[i]; });
    for (int n : runs) EXPECT_EQ(n, 1);
  }
}

TEST_P(ThreadPoolTest, ResultsOfALoopAreVisibleToTheNext) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(257, 0);
  for (int round = 0; round < 2000; ++round) {
    const int64_t count = 1 + round % 257;
    pool.ParallelFor(count, [&](int64_t i) { values[i] += i; });
    if (round % 500 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // sleepers
  }
  for (int64_t i = 0; i < 257; ++i) {
    int64_t expected = 0;
    for (int round = 0; round < 2000; ++round)
      expected += (1 + round % 257 > i) ? i : 0;
    EXPECT_EQ(values[i], expected);
  }
}

// No system has room for such a stack.
TEST(ThreadPoolCreateTest, SaysThatTheSystemGivesNoMoreThreads) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 62), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto pool = ThreadPool::Create(3);
  const auto alone = ThreadPool::Create(1);
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(pool.status())) << pool.status();
  EXPECT_THAT(pool.status().message(), testing::HasSubstr("0 of 2 threads"));
  EXPECT_TRUE(alone.ok());
  EXPECT_TRUE(ThreadPool::Create(3).ok());
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace recurve
