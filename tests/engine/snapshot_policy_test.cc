#include "engine/serving/snapshot_policy.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SnapshotPolicyTest, TheEndOfAPromptIsAlwaysWanted) {
  EXPECT_THAT(PlanSnapshots({.tokens = 100, .has_state = true}),
              ElementsAre(99));
  // It gives any number of its tokens.
  EXPECT_THAT(PlanSnapshots({.tokens = 100, .has_state = false}),
              ElementsAre(100));
  for (const bool has_state : {false, true}) {
    EXPECT_THAT(
        PlanSnapshots(
            {.tokens = 1000, .chunk_multiple = 64, .has_state = has_state}),
        ElementsAre(960));
  }
}

TEST(SnapshotPolicyTest, OneTokenRemainsToBeComputed) {
  const auto end = [](int64_t tokens) {
    return PlanSnapshots(
        {.tokens = tokens, .chunk_multiple = 64, .has_state = true});
  };
  EXPECT_THAT(end(127), ElementsAre(64));
  EXPECT_THAT(end(128), ElementsAre(64));
  EXPECT_THAT(end(129), ElementsAre(128));
}

TEST(SnapshotPolicyTest, ShortPrefixesAreNotKept) {
  const auto end = [](int64_t tokens) {
    return PlanSnapshots({.tokens = tokens, .has_state = true});
  };
  EXPECT_THAT(end(0), IsEmpty());
  EXPECT_THAT(end(1), IsEmpty());
  EXPECT_THAT(end(kMinSnapshotTokens), IsEmpty());
  EXPECT_THAT(end(kMinSnapshotTokens + 1), ElementsAre(kMinSnapshotTokens));
  // A prompt that fits one chunk.
  EXPECT_THAT(
      PlanSnapshots({.tokens = 64, .chunk_multiple = 64, .has_state = true}),
      IsEmpty());
  EXPECT_THAT(PlanSnapshots({.tokens = 2, .has_state = true, .min_tokens = 1}),
              ElementsAre(1));
  // No state is at 0, whatever the minimum.
  EXPECT_THAT(PlanSnapshots({.tokens = 1, .has_state = true, .min_tokens = 0}),
              IsEmpty());
  const std::vector<int64_t> named = {10, 31, 32};
  EXPECT_THAT(PlanSnapshots({.tokens = 99, .has_state = true, .named = named}),
              ElementsAre(32, 98));
}

TEST(SnapshotPolicyTest, WhatIsCachedIsNotTakenAgain) {
  const auto end = [](int64_t cached) {
    return PlanSnapshots({.tokens = 300,
                          .cached = cached,
                          .chunk_multiple = 64,
                          .has_state = true});
  };
  EXPECT_THAT(end(255), ElementsAre(256));
  EXPECT_THAT(end(256), IsEmpty());
  EXPECT_THAT(end(299), IsEmpty());
  const std::vector<int64_t> named = {64, 128, 192};
  EXPECT_THAT(PlanSnapshots({.tokens = 300,
                             .cached = 128,
                             .chunk_multiple = 64,
                             .has_state = true,
                             .named = named,
                             .parted_at = 191}),
              ElementsAre(192, 256));
}

TEST(SnapshotPolicyTest, PromptsThatPartAreCutBeforeIt) {
  const auto parted = [](int64_t parted_at) {
    return PlanSnapshots({.tokens = 1000,
                          .chunk_multiple = 64,
                          .has_state = true,
                          .parted_at = parted_at});
  };
  EXPECT_THAT(parted(63), ElementsAre(960));
  EXPECT_THAT(parted(64), ElementsAre(64, 960));
  EXPECT_THAT(parted(65), ElementsAre(64, 960));
  EXPECT_THAT(parted(127), ElementsAre(64, 960));
  EXPECT_THAT(parted(128), ElementsAre(128, 960));
  EXPECT_THAT(parted(999), ElementsAre(960));
}

TEST(SnapshotPolicyTest, NamedPlacesAreSortedAndDistinct) {
  const std::vector<int64_t> named = {500, 200, 192, 460};
  EXPECT_THAT(PlanSnapshots({.tokens = 1000,
                             .chunk_multiple = 64,
                             .has_state = true,
                             .named = named,
                             .parted_at = 70}),
              ElementsAre(64, 192, 448, 960));
}

TEST(SnapshotPolicyTest, NamedPlacesOutsideThePromptHaveNoEffect) {
  const std::vector<int64_t> named = {-100, 0, 1001,
                                      std::numeric_limits<int64_t>::max()};
  EXPECT_THAT(PlanSnapshots({.tokens = 1000,
                             .chunk_multiple = 64,
                             .has_state = true,
                             .named = named}),
              ElementsAre(960));
}

TEST(SnapshotPolicyTest, WithoutStateTheEndSuffices) {
  const std::vector<int64_t> named = {128, 256};
  EXPECT_THAT(PlanSnapshots({.tokens = 1000,
                             .chunk_multiple = 64,
                             .has_state = false,
                             .named = named,
                             .parted_at = 192}),
              ElementsAre(960));
}

TEST(SnapshotPolicyTest, RandomRequestsGetWhatTheyWant) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    SnapshotRequest request;
    request.tokens = random.Uniform(0, 300);
    request.cached = random.Uniform(0, request.tokens);
    request.chunk_multiple = random.Uniform(1, 70);
    request.has_state = random.Chance(0.8);
    std::vector<int64_t> named;
    for (int64_t i = random.Uniform(0, kMaxNamedSnapshots); i > 0; --i) {
      named.push_back(random.Uniform(-10, 320));
    }
    request.named = named;
    if (random.Chance(0.5)) request.parted_at = random.Uniform(0, 300);
    request.min_tokens = random.Uniform(0, 64);
    // Each position is tried, from the definition of what is wanted.
    std::vector<int64_t> expected;
    const int64_t last = request.tokens - (request.has_state ? 1 : 0);
    for (int64_t p = 1; p <= last; ++p) {
      if (p % request.chunk_multiple != 0 || p <= request.cached ||
          p < request.min_tokens) {
        continue;
      }
      const auto rounds_to = [&](int64_t place) {
        return place >= p && place < p + request.chunk_multiple;
      };
      const bool wanted =
          rounds_to(last) ||
          (request.has_state &&
           ((request.parted_at.has_value() && rounds_to(*request.parted_at)) ||
            std::any_of(named.begin(), named.end(), rounds_to)));
      if (wanted) expected.push_back(p);
    }
    EXPECT_EQ(PlanSnapshots(request), expected);
  }
}

}  // namespace
}  // namespace recurve
