#include "server/stranger_bytes.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(StrangerBytesTest, AConnectionMayHoldSoMuch) {
  StrangerBytes all(100, 1000);
  StrangerBytes::Share share(&all);
  EXPECT_TRUE(share.Set(0));
  EXPECT_TRUE(share.Set(1));
  EXPECT_TRUE(share.Set(100));
  EXPECT_FALSE(share.Set(101));
  EXPECT_EQ(all.total(), 101);
  EXPECT_TRUE(share.Set(100));
  EXPECT_EQ(all.total(), 100);
}

TEST(StrangerBytesTest, AllTogetherMayHoldSoMuch) {
  StrangerBytes all(100, 250);
  StrangerBytes::Share a(&all);
  StrangerBytes::Share b(&all);
  StrangerBytes::Share c(&all);
  EXPECT_TRUE(a.Set(100));
  EXPECT_TRUE(b.Set(100));
  EXPECT_TRUE(c.Set(50));
  EXPECT_FALSE(c.Set(51));
  // Who does not grow is not to blame.
  EXPECT_TRUE(a.Set(100));
  EXPECT_TRUE(a.Set(99));
  EXPECT_TRUE(c.Set(51));
  EXPECT_FALSE(a.Set(100));
  EXPECT_EQ(all.total(), 251);
}

TEST(StrangerBytesTest, WhoIsReleasedIsNotCounted) {
  StrangerBytes all(100, 150);
  StrangerBytes::Share a(&all);
  StrangerBytes::Share b(&all);
  EXPECT_TRUE(a.Set(100));
  EXPECT_FALSE(b.Set(100));
  a.Release();
  EXPECT_EQ(all.total(), 100);
  EXPECT_TRUE(b.Set(100));
  // Known now: whatever it holds.
  EXPECT_TRUE(a.Set(1'000'000));
  EXPECT_EQ(all.total(), 100);
  a.Release();
  EXPECT_EQ(all.total(), 100);
}

TEST(StrangerBytesTest, WhoIsGoneIsNotCounted) {
  StrangerBytes all(100, 100);
  {
    StrangerBytes::Share share(&all);
    EXPECT_FALSE(share.Set(120));
  }
  EXPECT_EQ(all.total(), 0);
  StrangerBytes::Share never_set(&all);
  never_set.Release();
  EXPECT_EQ(all.total(), 0);
}

TEST(StrangerBytesTest, NoLimitsCountNothing) {
  StrangerBytes::Share share(nullptr);
  EXPECT_TRUE(share.Set(int64_t{1} << 60));
  share.Release();
  EXPECT_TRUE(share.Set(1));
}

TEST(StrangerBytesTest, CountsFromManyThreads) {
  StrangerBytes all(1000, 1'000'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&all] {
      for (int round = 0; round < 1000; ++round) {
        StrangerBytes::Share share(&all);
        for (int64_t bytes = 0; bytes < 20; ++bytes) {
          EXPECT_TRUE(share.Set(bytes * 37 % 20));
        }
        if (round % 2 == 0) share.Release();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all.total(), 0);
}

}  // namespace
}  // namespace recurve
