#include "server/encode_threads.h"

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
                      ->Add(&held_, 1,
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
    ASSERT_TRUE(threads_->Add(&owner, 5000, [&] { ++done; }).ok());
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
  ASSERT_TRUE(threads_->Add(&first, 1, [&done, owned] { done += 1; }).ok());
  ASSERT_TRUE(threads_->Add(&second, 1, [&done] { done += 10; }).ok());
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
  ASSERT_TRUE(threads_->Add(&large, kRoom, [] {}).ok());
  const absl::Status status = threads_->Add(&small, 1, [] {});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("texts of 67108864 bytes wait to be encoded, and one "
                        "of 1 bytes comes; this server takes 67108864"));
  EXPECT_TRUE(threads_->Remove(&large));
  EXPECT_TRUE(threads_->Add(&small, kRoom, [] {}).ok());
  Open();
}

}  // namespace
}  // namespace recurve
