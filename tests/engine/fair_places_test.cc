#include "engine/serving/fair_places.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

TEST(FairPlacesTest, OneFlowHasThemAll) {
  FairPlaces places(10);
  const Flow flow;
  EXPECT_EQ(places.Left(flow), 10);
  places.Take(flow, 10);
  EXPECT_EQ(places.Left(flow), 0);
  EXPECT_EQ(places.used(), 10);
  places.Give(flow, 3);
  EXPECT_EQ(places.Left(flow), 3);
}

TEST(FairPlacesTest, HalfIsKeptByParts) {
  FairPlaces places(100);
  const Flow a = {1, 1, 0.25};
  const Flow b = {2, 3, 0.75};
  // All but the 37 kept for the other.
  EXPECT_EQ(places.Left(a), 63);
  places.Take(a, 63);
  EXPECT_EQ(places.Left(a), 0);
  EXPECT_EQ(places.Left(b), 37);
  places.Take(b, 37);
  EXPECT_EQ(places.Left(b), 0);
  EXPECT_EQ(places.used(), 100);
  // Returned places go first to flows below their part, then to any flow.
  places.Give(b, 10);
  EXPECT_EQ(places.Left(a), 0);
  EXPECT_EQ(places.Left(b), 10);
  places.Give(a, 60);
  EXPECT_EQ(places.used_by(a.id), 3);
  EXPECT_EQ(places.Left(a), 60);
  EXPECT_EQ(places.Left(b), 61);  // of 70 that are free, 9 are kept
}

// What is in use may be more than the limit: the flow's part is its own.
TEST(FairPlacesTest, APartIsTheFlowsEvenBeyondTheLimit) {
  FairPlaces places(10);
  const Flow a = {1, 1, 0.5};
  const Flow b = {2, 1, 0.5};
  places.Take(a, 20);
  EXPECT_LE(places.Left(a), 0);
  EXPECT_EQ(places.Left(b), 2);
}

TEST(FairPlacesTest, WhoStaysBelowTheirPartIsNeverRefused) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    TestRandom random(seed);
    const auto limit = random.Uniform(1, 200);
    std::vector<Flow> flows;
    double weights = 0;
    for (int64_t i = random.Uniform(1, 6); i > 0; --i) {
      flows.push_back({static_cast<uint32_t>(flows.size()),
                       static_cast<double>(random.Uniform(1, 9)), 0});
      weights += flows.back().weight;
    }
    for (Flow& flow : flows) flow.part = flow.weight / weights;
    FairPlaces places(limit);
    for (int i = 0; i < 500; ++i) {
      const Flow& flow =
          flows[random.Uniform(0, static_cast<int64_t>(flows.size()) - 1)];
      const int64_t half = limit / 2;
      const auto kept =
          static_cast<int64_t>(static_cast<double>(half) * flow.part);
      if (places.used_by(flow.id) < kept) {
        ASSERT_GE(places.Left(flow), 1) << "seed " << seed;
      }
      if (places.Left(flow) > 0 && random.Chance(0.7)) {
        places.Take(flow, 1);
      } else if (places.used_by(flow.id) > 0) {
        places.Give(flow, 1);
      }
      ASSERT_LE(places.used(), limit) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace recurve
