#include "server/grpc/frame_guard.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = FrameGuard::Clock;

const Clock::time_point kStart = Clock::time_point(seconds(1000));
constexpr int64_t kStreams = 1120;

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kPriority = 2;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kUnknown = 0x55;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndHeaders = 4;

// How often `act` may be done before it is an offence, up to `most`; then
// `*offence` is what it is.
template <typename Act>
int Count(int most, Act act, std::optional<Offence>* offence = nullptr) {
  for (int i = 0; i < most; ++i) {
    const std::optional<Offence> found = act();
    if (found) {
      if (offence != nullptr) *offence = found;
      return i;
    }
  }
  return most;
}

TEST(FrameBudgetTest, IsFullAtFirstAndRefillsInTime) {
  FrameBudget budget(10, 2);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.Take(1, kStart)) << i;
  EXPECT_FALSE(budget.Take(1, kStart));
  EXPECT_FALSE(budget.Take(1, kStart + milliseconds(499)));
  EXPECT_TRUE(budget.Take(1, kStart + milliseconds(501)));
  EXPECT_FALSE(budget.Take(1, kStart + milliseconds(501)));
  // Never above what it had at first.
  const auto late = kStart + std::chrono::hours(1);
  EXPECT_FALSE(budget.Take(11, late));
  EXPECT_TRUE(budget.Take(10, late));
  EXPECT_FALSE(budget.Take(0.5, late));
}

TEST(FrameBudgetTest, ATakingThatFailsTakesNothing) {
  FrameBudget budget(10, 0);
  EXPECT_FALSE(budget.Take(11, kStart));
  EXPECT_TRUE(budget.Take(10, kStart));
  EXPECT_TRUE(budget.Take(0, kStart));
  EXPECT_FALSE(budget.Take(1, kStart));
}

TEST(FrameBudgetTest, GivingStopsWhereItIsFull) {
  FrameBudget budget(10, 0);
  budget.Give(100);
  EXPECT_TRUE(budget.Take(10, kStart));
  EXPECT_FALSE(budget.Take(1, kStart));
  budget.Give(3);
  EXPECT_TRUE(budget.Take(3, kStart));
  budget.Give(100);
  EXPECT_FALSE(budget.Take(11, kStart));
  EXPECT_TRUE(budget.Take(10, kStart));
}

TEST(FrameBudgetTest, WideningAddsWhatItIsWiderBy) {
  FrameBudget budget(10, 1);
  EXPECT_TRUE(budget.Take(7, kStart));
  budget.Widen(100, 50);
  EXPECT_TRUE(budget.Take(93, kStart));
  EXPECT_FALSE(budget.Take(1, kStart));
  EXPECT_TRUE(budget.Take(50, kStart + seconds(1)));
  EXPECT_FALSE(budget.Take(1, kStart + seconds(1)));
}

TEST(FrameGuardTest, EveryOffenceHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kNumOffences; ++i) {
    names.insert(OffenceName(static_cast<Offence>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumOffences));
  EXPECT_EQ(names.count("unknown"), 0u);
}

class FrameGuardOfTest : public testing::TestWithParam<bool> {
 protected:
  FrameGuardOfTest() {
    if (known()) guard_.SetKnown();
  }
  bool known() const { return GetParam(); }
  std::optional<Offence> Frame(uint8_t type, uint8_t flags = 0,
                               size_t length = 8) {
    return guard_.OnFrame(type, flags, length, now_);
  }

  FrameGuard guard_{kStreams};
  Clock::time_point now_ = kStart;
};

INSTANTIATE_TEST_SUITE_P(Clients, FrameGuardOfTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Known" : "Unknown";
                         });

TEST_P(FrameGuardOfTest, ControlFramesArePaidFromABudgetThatRefills) {
  const int burst = known() ? 5000 : 200;
  const int per_second = known() ? 500 : 20;
  for (const uint8_t type : {kSettings, kWindowUpdate, kPriority, kUnknown}) {
    FrameGuard guard(kStreams);
    if (known()) guard.SetKnown();
    const auto frame = [&] { return guard.OnFrame(type, 0, 6, now_); };
    std::optional<Offence> offence;
    EXPECT_EQ(Count(10'000, frame, &offence), burst) << int{type};
    EXPECT_EQ(offence, Offence::kControlFrames);
    now_ += seconds(1);
    EXPECT_EQ(Count(10'000, frame), per_second);
    // The server's output gives some back.
    guard.OnSent();
    guard.OnSent();
    EXPECT_EQ(Count(10'000, frame), 8);
    now_ += std::chrono::hours(1);
    EXPECT_EQ(Count(10'000, frame), burst);
  }
}

// As the guard sees it where the call is gone already.
TEST_P(FrameGuardOfTest, ResetsOfNoCallAreControlFrames) {
  std::optional<Offence> offence;
  EXPECT_EQ(Count(
                10'000, [&] { return Frame(kReset, 0, 4); }, &offence),
            known() ? 5000 : 200);
  EXPECT_EQ(offence, Offence::kControlFrames);
}

TEST_P(FrameGuardOfTest, AnswersToPingsAreControlFrames) {
  EXPECT_EQ(Count(10'000, [&] { return Frame(kPing, kAck); }),
            known() ? 5000 : 200);
}

TEST_P(FrameGuardOfTest, SmallDataIsPaidAndOtherDataIsNot) {
  const int burst = known() ? 5000 : 200;
  EXPECT_EQ(Count(100'000, [&] { return Frame(kData, 0, 32); }), 100'000);
  EXPECT_EQ(Count(100'000, [&] { return Frame(kData, kEndStream, 0); }),
            100'000);
  EXPECT_EQ(Count(100'000, [&] { return Frame(kData, 0, 31); }), burst);
  EXPECT_EQ(Frame(kData, 0, 0), Offence::kControlFrames);
  EXPECT_EQ(Frame(kData, kEndStream, 0), std::nullopt);
}

TEST_P(FrameGuardOfTest, AHeadMayHaveSoManyBytesAndFrames) {
  constexpr size_t kMost = FrameGuard::kMaxHeadBytes;
  EXPECT_EQ(Frame(kHeaders, kEndHeaders, kMost), std::nullopt);
  EXPECT_EQ(Frame(kHeaders, kEndHeaders, kMost + 1), Offence::kHeadSize);
  // Each head counts for itself.
  EXPECT_EQ(Frame(kHeaders, 0, kMost - 10), std::nullopt);
  EXPECT_EQ(Frame(kContinuation, kEndHeaders, 10), std::nullopt);
  EXPECT_EQ(Frame(kHeaders, 0, kMost - 10), std::nullopt);
  EXPECT_EQ(Frame(kContinuation, kEndHeaders, 11), Offence::kHeadSize);
  for (int heads = 0; heads < 3; ++heads) {
    EXPECT_EQ(Frame(kHeaders, 0, 0), std::nullopt);
    for (int i = 0; i < FrameGuard::kMaxContinuations; ++i) {
      EXPECT_EQ(Frame(kContinuation, 0, 0), std::nullopt) << i;
    }
  }
  EXPECT_EQ(Frame(kContinuation, kEndHeaders, 0), Offence::kHeadSize);
}

TEST_P(FrameGuardOfTest, PingsWithoutDataMustNotComeOften) {
  std::optional<Offence> offence;
  // The first, and two that come too soon.
  EXPECT_EQ(Count(
                100, [&] { return Frame(kPing); }, &offence),
            3);
  EXPECT_EQ(offence, Offence::kPings);
  guard_.OnSent();
  EXPECT_EQ(Count(100, [&] { return Frame(kPing); }), 4);
}

// As Go's clients do at the most, where one may come late and the next in time.
TEST_P(FrameGuardOfTest, PingsEveryTenSecondsAreNoOffence) {
  for (int i = 0; i < 10'000; ++i) {
    now_ += i % 2 == 0 ? milliseconds(10'400) : milliseconds(9'600);
    ASSERT_EQ(Frame(kPing), std::nullopt) << i;
  }
}

// The answer may be in the socket for long, and a client that measures the
// bandwidth asks as soon as it has the answer to its last ping.
TEST_P(FrameGuardOfTest, EachFrameOfOutputEarnsAPing) {
  constexpr int kFrames = 150;
  for (int i = 0; i < kFrames; ++i) guard_.OnSent();
  for (int i = 0; i < kFrames; ++i) {
    now_ += milliseconds(50);
    ASSERT_EQ(Frame(kPing), std::nullopt) << i;
  }
  EXPECT_EQ(Count(100, [&] { return Frame(kPing); }), 3);
}

TEST_P(FrameGuardOfTest, EarnedPingsHaveALimit) {
  for (int i = 0; i < 100'000; ++i) guard_.OnSent();
  std::optional<Offence> offence;
  EXPECT_EQ(Count(
                100'000, [&] { return Frame(kPing); }, &offence),
            known() ? 1003 : 200);
  EXPECT_EQ(offence, known() ? Offence::kPings : Offence::kControlFrames);
}

TEST_P(FrameGuardOfTest, ResetsArePaidByWhatTheCallHadDone) {
  std::optional<Offence> offence;
  const auto reset = [&](bool accepted) {
    return [&, accepted] { return guard_.OnReset(accepted, now_); };
  };
  EXPECT_EQ(Count(10'000, reset(false), &offence), known() ? 5000 : 50);
  EXPECT_EQ(offence, Offence::kResets);
  EXPECT_EQ(Count(10'000, reset(true), &offence), 5000);
  EXPECT_EQ(offence, Offence::kResets);
  now_ += seconds(1);
  EXPECT_EQ(Count(10'000, reset(false)), known() ? 1000 : 5);
  EXPECT_EQ(Count(10'000, reset(true)), 1000);
}

// All that it may have open, and again as many that it has opened since.
TEST(FrameGuardTest, AKnownClientMayResetAllItsCallsAtOnce) {
  for (const int64_t streams : {1, 1000, 20'000}) {
    FrameGuard guard(streams);
    guard.SetKnown();
    for (const bool accepted : {false, true}) {
      EXPECT_GE(
          Count(1'000'000, [&] { return guard.OnReset(accepted, kStart); }),
          2 * streams);
    }
  }
}

TEST_P(FrameGuardOfTest, UselessCallsArePaid) {
  std::optional<Offence> offence;
  const auto call = [&] { return guard_.OnUselessCall(now_); };
  EXPECT_EQ(Count(10'000, call, &offence), known() ? 5000 : 50);
  EXPECT_EQ(offence, Offence::kCalls);
  now_ += seconds(1);
  EXPECT_EQ(Count(10'000, call), known() ? 1000 : 10);
}

TEST_P(FrameGuardOfTest, BytesThatBelongToNothingAreWaste) {
  const size_t burst = known() ? 16 << 20 : 1 << 20;
  EXPECT_EQ(guard_.OnReceived(burst, now_), std::nullopt);
  EXPECT_EQ(guard_.OnReceived(1, now_), Offence::kWaste);
  now_ += seconds(1);
  EXPECT_EQ(guard_.OnReceived(known() ? 4 << 20 : 16 << 10, now_),
            std::nullopt);
  EXPECT_EQ(guard_.OnReceived(1, now_), Offence::kWaste);
}

// However the reads cut the frames.
TEST_P(FrameGuardOfTest, WellFormedFramesAreNoWaste) {
  constexpr size_t kPayload = 100;
  constexpr size_t kFrame = 9 + kPayload;
  constexpr int kFrames = 100'000;
  for (const size_t read : {size_t{1}, size_t{8}, size_t{9}, size_t{10},
                            kFrame - 1, kFrame, kFrame + 1, size_t{16384}}) {
    FrameGuard guard(kStreams);
    if (known()) guard.SetKnown();
    size_t begun = 0;
    size_t received = 0;
    while (received < kFrames * kFrame) {
      received += read;
      // The guard sees a frame with its ninth byte, and data as they arrive.
      while (begun * kFrame + 9 <= received) {
        ASSERT_EQ(guard.OnFrame(kData, 0, kPayload, now_), std::nullopt);
        guard.OnAccounted(kPayload);
        ++begun;
      }
      ASSERT_EQ(guard.OnReceived(read, now_), std::nullopt) << read;
    }
  }
}

TEST_P(FrameGuardOfTest, PayloadOfUnknownFramesIsWaste) {
  const int most = (known() ? 16 << 20 : 1 << 20) / 16384;
  std::optional<Offence> offence;
  EXPECT_EQ(Count(
                100'000,
                [&] {
                  if (const auto found = Frame(kUnknown, 0, 16384)) {
                    return found;
                  }
                  return guard_.OnReceived(9 + 16384, now_);
                },
                &offence),
            most);
  EXPECT_EQ(offence, Offence::kWaste);
}

TEST(FrameGuardTest, WhatIsOnItsWayToACallThatEndedIsNoWaste) {
  FrameGuard guard(kStreams);
  guard.SetKnown();
  for (int i = 0; i < 10'000; ++i) {
    guard.OnUnwanted(65'535);
    ASSERT_EQ(guard.OnReceived(65'535, kStart), std::nullopt) << i;
  }
  EXPECT_EQ(guard.OnReceived((16 << 20) + 1, kStart), Offence::kWaste);
}

// Else a client could save it up for a flood.
TEST(FrameGuardTest, WhatMayBeOnItsWayHasALimit) {
  FrameGuard guard(kStreams);
  guard.SetKnown();
  for (int i = 0; i < 1'000'000; ++i) guard.OnUnwanted(65'535);
  EXPECT_EQ(guard.OnReceived((256 << 20) + (16 << 20), kStart), std::nullopt);
  EXPECT_EQ(guard.OnReceived(1, kStart), Offence::kWaste);
  // What is accounted for otherwise is not lost by it.
  guard.OnAccounted(size_t{1} << 30);
  guard.OnUnwanted(1);
  EXPECT_EQ(guard.OnReceived(size_t{1} << 30, kStart), std::nullopt);
  EXPECT_EQ(guard.OnReceived(1, kStart), Offence::kWaste);
}

TEST(FrameGuardTest, BecomingKnownGivesTheRestOfTheLargerBudgets) {
  FrameGuard guard(kStreams);
  EXPECT_EQ(Count(1000, [&] { return guard.OnUselessCall(kStart); }), 50);
  EXPECT_EQ(Count(1000, [&] { return guard.OnFrame(kSettings, 0, 6, kStart); }),
            200);
  guard.SetKnown();
  guard.SetKnown();  // has no further effect
  EXPECT_EQ(Count(10'000, [&] { return guard.OnUselessCall(kStart); }), 4950);
  EXPECT_EQ(
      Count(10'000, [&] { return guard.OnFrame(kSettings, 0, 6, kStart); }),
      4800);
}

}  // namespace
}  // namespace recurve
