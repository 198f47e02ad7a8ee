#include "engine/serving/admission.h"

#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::DoubleNear;
using testing::Optional;

using Clock = Admission::Clock;

constexpr Admission::Limits kLimits = {/*slots=*/4, /*max_active=*/20,
                                       /*max_step_tokens=*/100};
const Flow kAlone;
const Flow kA = {1, 1, 0.5};
const Flow kB = {2, 1, 0.5};

// So long a wait, or run.
auto Seconds(double seconds) { return Optional(DoubleNear(seconds, 1e-9)); }

const Clock::time_point kNow = Clock::now();
Clock::time_point In(double seconds) {
  return kNow + std::chrono::duration_cast<Clock::duration>(
                    std::chrono::duration<double>(seconds));
}

Admission::Work Tokens(int64_t generate, bool may_stop = false) {
  return {/*prompt_tokens=*/100, generate, may_stop};
}

// Steps of 10 ms, sequences of 100 of them.
void Learn(Admission* admission, const Flow& flow = kAlone) {
  for (int i = 0; i < 300; ++i) admission->OnStep(0.01);
  for (int i = 0; i < 300; ++i) admission->OnDone(flow, Tokens(99), 99);
}

TEST(AdmissionTest, PlacesAreForThoseThatRunOrWait) {
  Admission admission(kLimits);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(admission.CheckPlaces(kAlone, 1).ok()) << i;
    admission.Open(kAlone);
  }
  EXPECT_EQ(admission.CheckPlaces(kAlone, 1).message(),
            "20 requests are running or waiting; this server takes 4 running "
            "and 16 waiting");
  EXPECT_TRUE(absl::IsResourceExhausted(admission.CheckPlaces(kAlone, 1)));
  admission.SetIdle(kAlone);
  EXPECT_TRUE(admission.CheckPlaces(kAlone, 1).ok());
  EXPECT_FALSE(admission.CheckPlaces(kAlone, 2).ok());
  admission.SetActive(kAlone);
  EXPECT_FALSE(admission.CheckPlaces(kAlone, 1).ok());
  admission.Close(kAlone, /*active=*/true);
  EXPECT_TRUE(admission.CheckPlaces(kAlone, 1).ok());
}

TEST(AdmissionTest, IdleOnesHaveALimitToo) {
  Admission admission(kLimits);
  for (int i = 0; i < 80; ++i) {
    ASSERT_TRUE(admission.CheckPlaces(kAlone, 1).ok()) << i;
    admission.Open(kAlone);
    admission.SetIdle(kAlone);
  }
  EXPECT_EQ(admission.CheckPlaces(kAlone, 1).message(),
            "80 requests are open, with those that are idle; this server takes "
            "80");
  admission.Close(kAlone, /*active=*/false);
  EXPECT_TRUE(admission.CheckPlaces(kAlone, 1).ok());
}

TEST(AdmissionTest, AFlowLeavesPlacesToOthers) {
  Admission admission(kLimits);
  int taken = 0;
  for (; admission.CheckPlaces(kA, 1).ok(); ++taken) admission.Open(kA);
  EXPECT_EQ(taken, 15);
  EXPECT_EQ(admission.CheckPlaces(kA, 2).message(),
            "15 requests are running or waiting, 15 of them yours and 2 come; "
            "this server takes 4 running and 16 waiting, and half of these it "
            "keeps for the tenants' shares");
  for (taken = 0; admission.CheckPlaces(kB, 1).ok(); ++taken) {
    admission.Open(kB);
    admission.SetIdle(kB);
  }
  // Also of those that may be open, of which A has 15.
  EXPECT_EQ(taken, 60);
}

TEST(AdmissionTest, NobodyIsLateBeforeAnythingIsKnown) {
  Admission admission(kLimits);
  for (int i = 0; i < 4; ++i) admission.BeginRunning(kAlone);
  for (int i = 0; i < 100; ++i) {
    admission.BeginWaiting(kAlone, 0, Tokens(1000));
  }
  EXPECT_EQ(admission.EstimateWait(kAlone, 0), std::nullopt);
  EXPECT_EQ(admission.EstimateRun(kAlone, Tokens(5)), std::nullopt);
  EXPECT_TRUE(admission.CheckTime(kAlone, 0, Tokens(5), kNow, In(0.001)).ok());
  EXPECT_TRUE(
      admission.CheckStart(kAlone, Tokens(5), kNow, kNow, In(0.001)).ok());
}

TEST(AdmissionTest, NobodyWaitsForASlotThatIsFree) {
  Admission admission(kLimits);
  Learn(&admission);
  for (int i = 0; i < 3; ++i) admission.BeginRunning(kAlone);
  EXPECT_THAT(admission.EstimateWait(kAlone, 0), Seconds(0));
  EXPECT_TRUE(admission.CheckTime(kAlone, 0, Tokens(99), kNow, In(0.001)).ok());
  // One that waits takes it.
  admission.BeginWaiting(kAlone, 0, Tokens(99));
  EXPECT_THAT(admission.EstimateWait(kAlone, 0), Seconds(2 * 100 * 0.01 / 4));
}

TEST(AdmissionTest, TheWaitIsThatForTheWorkAhead) {
  Admission admission(kLimits);
  Learn(&admission);
  for (int i = 0; i < 4; ++i) admission.BeginRunning(kAlone);
  EXPECT_THAT(admission.EstimateWait(kAlone, 0), Seconds(0.25));
  admission.BeginWaiting(kAlone, 0, Tokens(300));
  admission.BeginWaiting(kAlone, 2, Tokens(100));
  EXPECT_THAT(admission.EstimateWait(kAlone, 0),
              Seconds((301 + 101 + 100) * 0.01 / 4));
  // Work of lower priority does not count.
  EXPECT_THAT(admission.EstimateWait(kAlone, 1),
              Seconds((101 + 100) * 0.01 / 4));
  admission.EndWaiting(kAlone, 0, Tokens(300));
  admission.EndWaiting(kAlone, 2, Tokens(100));
  EXPECT_THAT(admission.EstimateWait(kAlone, 0), Seconds(0.25));
}

TEST(AdmissionTest, WhatMayStopCountsAsItDidOfLate) {
  Admission admission(kLimits);
  for (int i = 0; i < 300; ++i) admission.OnStep(0.01);
  for (int i = 0; i < 4; ++i) admission.BeginRunning(kAlone);
  admission.BeginWaiting(kAlone, 0, Tokens(1000, /*may_stop=*/true));
  EXPECT_EQ(admission.EstimateWait(kAlone, 0), std::nullopt);
  EXPECT_EQ(admission.EstimateRun(kAlone, Tokens(1000, true)), std::nullopt);
  EXPECT_THAT(admission.EstimateRun(kAlone, Tokens(1000)), Seconds(10.01));
  for (int i = 0; i < 300; ++i) {
    admission.OnDone(kAlone, Tokens(1000, true), 99);
  }
  EXPECT_THAT(admission.EstimateWait(kAlone, 0),
              Seconds((1 + 99 + 100) * 0.01 / 4));
  EXPECT_THAT(admission.EstimateRun(kAlone, Tokens(1000, true)), Seconds(1));
}

TEST(AdmissionTest, AFlowHasItsPartOfTheSlots) {
  Admission admission(kLimits);
  Learn(&admission);
  const Flow heavy = {3, 3, 0.5};
  for (int i = 0; i < 4; ++i) admission.BeginRunning(kA);
  for (int i = 0; i < 50; ++i) admission.BeginWaiting(kA, 0, Tokens(99));
  EXPECT_THAT(admission.EstimateWait(kB, 0), Seconds(0));
  EXPECT_THAT(admission.EstimateWait(heavy, 0), Seconds(0));
  EXPECT_THAT(admission.EstimateWait(kA, 0), Seconds(51 * 100 * 0.01 / 4));
  admission.BeginRunning(kB);
  admission.BeginRunning(kB);
  EXPECT_THAT(admission.EstimateWait(kB, 0), Seconds(100 * 0.01 / 2));
  EXPECT_THAT(admission.EstimateWait(kA, 0), Seconds(51 * 100 * 0.01 / 2));
}

TEST(AdmissionTest, RefusesWhatTheWaitKeepsFromBeingDone) {
  Admission admission(kLimits);
  Learn(&admission);
  for (int i = 0; i < 4; ++i) admission.BeginRunning(kAlone);
  for (int i = 0; i < 7; ++i) admission.BeginWaiting(kAlone, 0, Tokens(99));
  // 2 s, and one more.
  EXPECT_TRUE(admission.CheckTime(kAlone, 0, Tokens(99), kNow, In(3.01)).ok());
  const absl::Status late =
      admission.CheckTime(kAlone, 0, Tokens(99), kNow, In(2.99));
  EXPECT_TRUE(absl::IsResourceExhausted(late));
  EXPECT_TRUE(IsTooLate(late));
  EXPECT_EQ(late.message(),
            "the wait is about 2 s, and the request takes about 1 s; the "
            "call's deadline leaves 2.99 s");
  EXPECT_FALSE(IsTooLate(absl::ResourceExhaustedError("no place")));
  // Those behind the others have no need to wait.
  EXPECT_TRUE(admission.CheckTime(kAlone, 1, Tokens(99), kNow, In(1.3)).ok());
  // What would not be done anyway is for a client that takes what comes.
  EXPECT_TRUE(admission.CheckTime(kAlone, 0, Tokens(9999), kNow, In(2.1)).ok());
  EXPECT_FALSE(
      admission.CheckTime(kAlone, 0, Tokens(9999), kNow, In(1.9)).ok());
}

TEST(AdmissionTest, EndsWhatItsWaitHasMadeLate) {
  Admission admission(kLimits);
  Learn(&admission);
  const Clock::time_point submitted = In(-3);
  EXPECT_TRUE(
      admission.CheckStart(kAlone, Tokens(99), submitted, kNow, In(1.01)).ok());
  const absl::Status late =
      admission.CheckStart(kAlone, Tokens(99), submitted, kNow, In(0.9));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_EQ(late.message(),
            "after a wait of 3 s the call's deadline leaves 0.9 s; the "
            "request takes about 1 s");
  EXPECT_TRUE(
      admission.CheckStart(kAlone, Tokens(999), submitted, kNow, In(0.9)).ok());
}

}  // namespace
}  // namespace recurve
