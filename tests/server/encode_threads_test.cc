#include "server/requests/encode_threads.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::HasSubstr;

class EncodeThreadsTest : public testing::Test {
 protected:
  // Works that keep all threads until Open().
  void Hold() {
    for (int i = 0; i < EncodeThreads::kThreads; ++i) {
      auto begun = std::make_shared<std::promise<void>>();
      ASSERT_TRUE(threads_
                      ->Add(&held_, {9, 1, 0}, 1,
                            [begun, go_on = opened_] {
                              begun->set_value();
                              go_on.wait();
                            })
                      .ok());
      begun->get_future().wait();
    }
  }
  void Open() { open_.set_value(); }

  std::promise<void> open_;
  const std::shared_future<void> opened_ = open_.get_future().share();
  const int held_ = 0;
  std::unique_ptr<EncodeThreads> threads_ = *EncodeThreads::Start();
};

TEST_F(EncodeThreadsTest, RunsWhatWaitsBeforeItEnds) {
  EXPECT_TRUE(threads_->idle());
  Hold();
  EXPECT_FALSE(threads_->idle());
  std::atomic<int> done{0};
  std::vector<int> owners(10);
  for (const int& owner : owners) {
    ASSERT_TRUE(threads_->Add(&owner, Flow(), 5000, [&] { ++done; }).ok());
  }
  EXPECT_EQ(done, 0);
  Open();
  threads_.reset();
  EXPECT_EQ(done, 10);
}

TEST_F(EncodeThreadsTest, WhatIsTakenBackDoesNotRunAndFreesWhatItOwns) {
  Hold();
  const int first = 0;
  const int second = 0;
  std::atomic<int> done{0};
  const auto owned = std::make_shared<int>(1);
  ASSERT_TRUE(
      threads_->Add(&first, Flow(), 1, [&done, owned] { done += 1; }).ok());
  ASSERT_TRUE(threads_->Add(&second, Flow(), 1, [&done] { done += 10; }).ok());
  EXPECT_EQ(owned.use_count(), 2);
  EXPECT_TRUE(threads_->Remove(&first));
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(threads_->Remove(&first));
  EXPECT_FALSE(threads_->Remove(&held_));  // it has begun
  Open();
  threads_.reset();
  EXPECT_EQ(done, 10);
}

TEST_F(EncodeThreadsTest, RefusesWhatIsTooMuchAtATime) {
  Hold();
  const int large = 0;
  const int small = 0;
  constexpr int64_t kRoom = EncodeThreads::kMaxBytes - EncodeThreads::kThreads;
  ASSERT_TRUE(threads_->Add(&large, Flow(), kRoom, [] {}).ok());
  const absl::Status status = threads_->Add(&small, Flow(), 1, [] {});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("texts of 67108864 bytes wait to be encoded, and one "
                        "of 1 bytes comes; this server takes 67108864"));
  EXPECT_TRUE(threads_->Remove(&large));
  EXPECT_TRUE(threads_->Add(&small, Flow(), kRoom, [] {}).ok());
  Open();
}

// A flow with much to encode does not delay others.
TEST_F(EncodeThreadsTest, FlowsTakeTurnsByTheirBytes) {
  Hold();
  const Flow heavy = {1, 1, 0.25};
  const Flow light = {2, 2, 0.5};
  std::vector<int> owners(40);
  std::vector<char> order;
  Mutex mu;
  const auto add = [&](size_t owner, const Flow& flow, int64_t bytes, char c) {
    ASSERT_TRUE(threads_
                    ->Add(&owners[owner], flow, bytes,
                          [&, c] {
                            MutexLock lock(&mu);
                            order.push_back(c);
                          })
                    .ok());
  };
  for (size_t i = 0; i < 20; ++i) add(i, heavy, 1000, 'h');
  for (size_t i = 20; i < 28; ++i) add(i, light, 1000, 'l');
  Open();
  threads_.reset();
  ASSERT_EQ(order.size(), 28u);
  // Two of the second for one of the first, give or take what the threads do at
  // the same time.
  EXPECT_GE(std::count(order.begin(), order.begin() + 14, 'l'), 7);
}

TEST_F(EncodeThreadsTest, AFlowLeavesRoomForOthers) {
  Hold();
  const Flow heavy = {1, 1, 0.5};
  const Flow light = {2, 1, 0.5};
  std::vector<int> owners(200);
  size_t taken = 0;
  while (threads_->Add(&owners[taken], heavy, 1 << 20, [] {}).ok()) ++taken;
  EXPECT_EQ(taken, 47u);  // of 64 MiB less a quarter, and what holds
  EXPECT_TRUE(threads_->Add(&owners[150], light, 15 << 20, [] {}).ok());
  EXPECT_FALSE(threads_->Add(&owners[151], light, 2 << 20, [] {}).ok());
  Open();
}

}  // namespace
}  // namespace recurve
