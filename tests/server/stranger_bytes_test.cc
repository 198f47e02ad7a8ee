#include "server/transport/stranger_bytes.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace recurve {
namespace {

constexpr StrangerBytes::Port kGrpc = StrangerBytes::Port::kGrpc;
constexpr StrangerBytes::Port kHttp = StrangerBytes::Port::kHttp;

TEST(StrangerBytesTest, AConnectionMayHoldSoMuch) {
  StrangerBytes all(100, 1000);
  StrangerBytes::Share share(&all, kGrpc);
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
  StrangerBytes::Share a(&all, kGrpc);
  StrangerBytes::Share b(&all, kGrpc);
  StrangerBytes::Share c(&all, kGrpc);
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
  StrangerBytes::Share a(&all, kGrpc);
  StrangerBytes::Share b(&all, kGrpc);
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
    StrangerBytes::Share share(&all, kGrpc);
    EXPECT_FALSE(share.Set(120));
  }
  EXPECT_EQ(all.total(), 0);
  StrangerBytes::Share never_set(&all, kGrpc);
  never_set.Release();
  EXPECT_EQ(all.total(), 0);
}

TEST(StrangerBytesTest, NoLimitsCountNothing) {
  StrangerBytes::Share share(nullptr, kGrpc);
  EXPECT_TRUE(share.Set(int64_t{1} << 60));
  share.Release();
  EXPECT_TRUE(share.Set(1));
}

// A connection that holds 100 bytes and is idle until it is told to end.
struct Idler {
  Idler(StrangerBytes* all, StrangerBytes::Port port) : share(all, port) {
    EXPECT_TRUE(share.Set(100));
    Rest();
  }
  void Rest() {
    share.SetIdle([this] { ++ends; });
  }
  StrangerBytes::Share share;
  int ends = 0;
};

TEST(StrangerBytesTest, TheOldestThatAreIdleGiveWay) {
  StrangerBytes all(1000, 300);
  Idler first(&all, kGrpc);
  Idler second(&all, kHttp);
  Idler third(&all, kGrpc);
  // Activity restarts its idle time.
  first.share.SetBusy();
  first.Rest();
  StrangerBytes::Share more(&all, kGrpc);
  EXPECT_TRUE(more.Set(100));
  EXPECT_EQ(second.ends, 1);
  // Those that are about to end count as gone.
  EXPECT_TRUE(more.Set(99));
  EXPECT_TRUE(more.Set(100));
  EXPECT_EQ(third.ends, 0);
  EXPECT_TRUE(more.Set(101));
  EXPECT_EQ(third.ends, 1);
  EXPECT_EQ(first.ends, 0);
  EXPECT_EQ(all.total(), 401);
  second.share.Release();
  third.share.Release();
  EXPECT_EQ(all.total(), 201);
  // They are gone only once: there is room for 99, and for 100 of `first`.
  EXPECT_TRUE(more.Set(200));
  EXPECT_EQ(first.ends, 0);
  EXPECT_TRUE(more.Set(201));
  EXPECT_EQ(first.ends, 1);
  EXPECT_FALSE(more.Set(301));
}

TEST(StrangerBytesTest, WhereTooFewAreIdleNobodyEnds) {
  StrangerBytes all(1000, 300);
  Idler idle(&all, kGrpc);
  StrangerBytes::Share busy(&all, kGrpc);
  EXPECT_TRUE(busy.Set(200));
  StrangerBytes::Share more(&all, kGrpc);
  EXPECT_FALSE(more.Set(101));
  EXPECT_EQ(idle.ends, 0);
  more.Release();
  EXPECT_TRUE(busy.Set(300));
  EXPECT_EQ(idle.ends, 1);
}

TEST(StrangerBytesTest, WhoIsKnownOrGoneDoesNotGiveWay) {
  StrangerBytes all(1000, 300);
  Idler known(&all, kGrpc);
  known.share.Release();
  known.Rest();
  { const Idler gone(&all, kGrpc); }
  EXPECT_FALSE(all.EndOldest(kGrpc));
  EXPECT_EQ(all.total(), 0);
  EXPECT_EQ(known.ends, 0);
}

TEST(StrangerBytesTest, AConnectionOfThePortGivesWay) {
  StrangerBytes all(1000, 300);
  Idler http(&all, kHttp);
  Idler first(&all, kGrpc);
  Idler second(&all, kGrpc);
  EXPECT_TRUE(all.EndOldest(kGrpc));
  EXPECT_EQ(first.ends, 1);
  first.Rest();  // it ends, whatever it does
  EXPECT_TRUE(all.EndOldest(kGrpc));
  EXPECT_EQ(second.ends, 1);
  EXPECT_FALSE(all.EndOldest(kGrpc));
  EXPECT_EQ(http.ends, 0);
  EXPECT_TRUE(all.EndOldest(kHttp));
  EXPECT_EQ(http.ends, 1);
  EXPECT_EQ(first.ends, 1);
}

TEST(StrangerBytesTest, CountsFromManyThreads) {
  StrangerBytes all(1000, 1'000'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&all] {
      for (int round = 0; round < 1000; ++round) {
        StrangerBytes::Share share(&all, kGrpc);
        share.SetIdle([] {});
        if (round % 3 == 0) all.EndOldest(kGrpc);
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
