#include "server/tenants/token_bucket.h"

#include "gtest/gtest.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TokenBucket::Time kStart = TokenBucket::Time(seconds(1000));

TEST(TokenBucketTest, IsFullAtFirstAndFillsAtItsRate) {
  TokenBucket bucket(10, 100, kStart);
  EXPECT_TRUE(bucket.Take(100, kStart));
  EXPECT_FALSE(bucket.Take(1, kStart));
  EXPECT_EQ(bucket.Wait(1, kStart), milliseconds(100));
  EXPECT_FALSE(bucket.Take(11, kStart + seconds(1)));
  EXPECT_TRUE(bucket.Take(10, kStart + seconds(1)));
  // Never above its size.
  EXPECT_FALSE(bucket.Take(1, kStart + seconds(1)));
  EXPECT_TRUE(bucket.Take(100, kStart + seconds(1000)));
  EXPECT_FALSE(bucket.Take(1, kStart + seconds(1000)));
}

TEST(TokenBucketTest, TakesBackWhatWasNotUsed) {
  TokenBucket bucket(1, 100, kStart);
  EXPECT_TRUE(bucket.Take(90, kStart));
  bucket.Give(80);
  EXPECT_TRUE(bucket.Take(90, kStart));
  EXPECT_FALSE(bucket.Take(1, kStart));
  bucket.Give(1000);
  EXPECT_FALSE(bucket.Take(100, kStart) && bucket.Take(1, kStart));
}

TEST(TokenBucketTest, WhatIsLargerThanItWaitsForAFullOneAndLeavesADebt) {
  TokenBucket bucket(10, 100, kStart);
  EXPECT_TRUE(bucket.Take(300, kStart));  // 200 of debt
  EXPECT_EQ(bucket.Wait(1, kStart), milliseconds(20'100));
  EXPECT_FALSE(bucket.Take(1, kStart + seconds(20)));
  EXPECT_EQ(bucket.Wait(300, kStart + seconds(20)), seconds(10));
  EXPECT_FALSE(bucket.Take(300, kStart + milliseconds(29'900)));
  EXPECT_TRUE(bucket.Take(300, kStart + seconds(30)));
}

TEST(TokenBucketTest, KeepsWhatItHasWhenLimitsChange) {
  TokenBucket bucket(10, 100, kStart);
  EXPECT_TRUE(bucket.Take(60, kStart));
  bucket.SetLimits(1, 1000, kStart + seconds(1));  // at the old rate until now
  EXPECT_FALSE(bucket.Take(51, kStart + seconds(1)));
  EXPECT_TRUE(bucket.Take(30, kStart + seconds(1)));
  bucket.SetLimits(1, 10, kStart + seconds(1));
  EXPECT_TRUE(bucket.Take(10, kStart + seconds(1)));
  EXPECT_FALSE(bucket.Take(1, kStart + seconds(1)));
}

TEST(TokenBucketTest, IgnoresTimeThatGoesBack) {
  TokenBucket bucket(10, 100, kStart);
  EXPECT_TRUE(bucket.Take(100, kStart));
  EXPECT_FALSE(bucket.Take(1, kStart - seconds(100)));
  EXPECT_FALSE(bucket.Take(1, kStart));
}

}  // namespace
}  // namespace recurve
