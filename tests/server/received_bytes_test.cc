#include "server/grpc/received_bytes.h"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace recurve {
namespace {

class FakeCall : public ReceivingCall {
 public:
  void Evict() override { ++evicted; }
  std::atomic<int> evicted = 0;
};
using FakeCallPtr = std::shared_ptr<FakeCall>;

std::vector<FakeCallPtr> Calls(int count) {
  std::vector<FakeCallPtr> calls;
  for (int i = 0; i < count; ++i) calls.push_back(std::make_shared<FakeCall>());
  return calls;
}

TEST(ReceivedBytesTest, EvictsNobodyUpToTheLimit) {
  ReceivedBytes received(100);
  const auto calls = Calls(4);
  for (int round = 0; round < 3; ++round) {
    for (const auto& call : calls) received.Update(call, 25);
    for (const auto& call : calls) received.Update(call, 25);
    for (const auto& call : calls) received.Update(call, 0);
  }
  for (const auto& call : calls) EXPECT_EQ(call->evicted, 0);
}

TEST(ReceivedBytesTest, EvictsTheOneThatHasHeldSomeForLongest) {
  ReceivedBytes received(100);
  const auto calls = Calls(3);
  received.Update(calls[0], 1);
  received.Update(calls[1], 50);
  received.Update(calls[0], 49);  // goes on holding some
  received.Update(calls[2], 1);
  EXPECT_EQ(calls[0]->evicted, 0);
  received.Update(calls[2], 2);
  EXPECT_EQ(calls[0]->evicted, 1);
  EXPECT_EQ(calls[1]->evicted, 0);
  EXPECT_EQ(calls[2]->evicted, 0);
}

// What has held nothing in between has not held some for long.
TEST(ReceivedBytesTest, WhoHasHeldNothingGoesToTheEnd) {
  ReceivedBytes received(100);
  const auto calls = Calls(3);
  received.Update(calls[0], 50);
  received.Update(calls[1], 50);
  received.Update(calls[0], 0);
  received.Update(calls[0], 50);
  received.Update(calls[2], 1);
  EXPECT_EQ(calls[1]->evicted, 1);
  EXPECT_EQ(calls[0]->evicted, 0);
}

// It takes a moment until a call that is evicted gives its memory up, and
// others go on receiving meanwhile.
TEST(ReceivedBytesTest, EvictsNoMoreThanItTakes) {
  ReceivedBytes received(100);
  const auto calls = Calls(12);
  for (int i = 0; i < 10; ++i) received.Update(calls[i], 10);
  received.Update(calls[10], 1);  // for which calls[0] goes
  for (int bytes = 2; bytes <= 10; ++bytes) {
    received.Update(calls[10], bytes);
    received.Update(calls[0], 10 + bytes);
  }
  EXPECT_EQ(calls[0]->evicted, 1);
  for (int i = 1; i < 12; ++i) EXPECT_EQ(calls[i]->evicted, 0) << i;
  received.Update(calls[0], 0);
  received.Update(calls[11], 1);
  EXPECT_EQ(calls[1]->evicted, 1);
  EXPECT_EQ(calls[0]->evicted, 1);
}

TEST(ReceivedBytesTest, EvictsSeveralForALargeOne) {
  ReceivedBytes received(100);
  const auto calls = Calls(11);
  for (int i = 0; i < 10; ++i) received.Update(calls[i], 10);
  received.Update(calls[10], 35);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(calls[i]->evicted, i < 4) << i;
  EXPECT_EQ(calls[10]->evicted, 0);
}

TEST(ReceivedBytesTest, EvictsWhoAloneIsBeyondTheLimit) {
  ReceivedBytes received(100);
  const auto calls = Calls(2);
  received.Update(calls[0], 100);
  EXPECT_EQ(calls[0]->evicted, 0);
  received.Update(calls[0], 101);
  EXPECT_EQ(calls[0]->evicted, 1);
  received.Update(calls[0], 200);
  EXPECT_EQ(calls[0]->evicted, 1);
  received.Update(calls[1], 100);  // the others have all the room
  EXPECT_EQ(calls[1]->evicted, 0);
  // Once it holds nothing it is as any other.
  received.Update(calls[0], 0);
  received.Update(calls[1], 0);
  received.Update(calls[0], 101);
  EXPECT_EQ(calls[0]->evicted, 2);
}

TEST(ReceivedBytesTest, ALimitOfZeroEvictsAll) {
  ReceivedBytes received(0);
  const auto calls = Calls(2);
  for (const auto& call : calls) {
    received.Update(call, 0);
    EXPECT_EQ(call->evicted, 0);
    received.Update(call, 1);
    EXPECT_EQ(call->evicted, 1);
  }
}

// From many threads: in the end there is room for all of it again.
TEST(ReceivedBytesTest, NothingIsLostOrCountedTwice) {
  constexpr int kThreads = 4;
  constexpr int kLimit = 1000;
  ReceivedBytes received(kLimit);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&received, t] {
      std::minstd_rand random(static_cast<unsigned>(t));
      const auto calls = Calls(20);
      for (int i = 0; i < 20'000; ++i) {
        received.Update(calls[random() % calls.size()], random() % 100);
      }
      for (const auto& call : calls) received.Update(call, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto calls = Calls(2);
  received.Update(calls[0], kLimit);
  EXPECT_EQ(calls[0]->evicted, 0);
  received.Update(calls[1], 1);
  EXPECT_EQ(calls[0]->evicted, 1);
}

}  // namespace
}  // namespace recurve
