#include "kernels/tpa/prefill/tpa_prefill_plan.h"

#include "gtest/gtest.h"

namespace recurve {
namespace {

constexpr TpaShape kRank1 = {32, 128, 128, 16, 1};
constexpr TpaShape kRank2 = {32, 128, 128, 16, 2};
constexpr int64_t kPlenty = int64_t{1} << 40;

TEST(TpaPrefillPlanTest, HasRoomForEveryRow) {
  const TpaPrefillPlan plan = PlanTpaPrefill(kRank1, {3, 1000, 5000, kPlenty});
  // However the 1000 tokens are shared out: 3 rows have at most 2 tiles more.
  EXPECT_GE(plan.query_tiles, 1000 / plan.query_tile + 3);
  EXPECT_GE(plan.key_tiles, 5000 / plan.key_tile + 3);
  EXPECT_GT(plan.context_bytes, 0);
  EXPECT_EQ(plan.head_group, 32);
  EXPECT_EQ(plan.scratch_bytes, 32 * (plan.query_bytes + plan.context_bytes));
}

// One token in each of many rows is a tile each, not more.
TEST(TpaPrefillPlanTest, NoMoreTilesThanTokens) {
  const TpaPrefillPlan plan = PlanTpaPrefill(kRank1, {100, 7, 100000, kPlenty});
  EXPECT_EQ(plan.query_tiles, 7);
}

TEST(TpaPrefillPlanTest, ScratchLimitsTheHeads) {
  const TpaPrefillLimits limits = {4, 4096, 16384, kPlenty};
  const TpaPrefillPlan all = PlanTpaPrefill(kRank1, limits);
  const int64_t head = all.query_bytes + all.context_bytes;
  int before = 0;
  for (int64_t heads = 0; heads <= 40; ++heads) {
    TpaPrefillLimits less = limits;
    less.max_scratch = heads * head + 1;
    const TpaPrefillPlan plan = PlanTpaPrefill(kRank1, less);
    EXPECT_GE(plan.head_group, 1);  // one is always taken
    EXPECT_LE(plan.head_group, 32);
    EXPECT_GE(plan.head_group, before);
    EXPECT_EQ(plan.scratch_bytes, plan.head_group * head);
    if (heads > 0) {
      EXPECT_LE(plan.scratch_bytes, less.max_scratch);
    }
    before = plan.head_group;
  }
  EXPECT_EQ(before, 32);
}

// What decides the order of a query's sums depends on the shape alone.
TEST(TpaPrefillPlanTest, TilesOfKeysDependOnTheShapeAlone) {
  for (const TpaShape& shape : {kRank1, kRank2, TpaShape{78, 64, 64, 6, 2},
                                TpaShape{1, 256, 8, 0, 4}}) {
    const int tile = PlanTpaPrefill(shape, {1, 1, 1, 0}).key_tile;
    EXPECT_EQ(tile % kTpaPageTokens, 0);
    for (int64_t tokens : {int64_t{1}, int64_t{64}, int64_t{1} << 20}) {
      for (int rows : {1, 7, kTpaPrefillMaxRows}) {
        EXPECT_EQ(
            PlanTpaPrefill(shape, {rows, tokens, 3 * tokens, tokens}).key_tile,
            tile);
      }
    }
  }
}

TEST(TpaPrefillPlanTest, ScheduleHasAPlaceForEverything) {
  const TpaPrefillSchedule parts(1000, 3000);
  EXPECT_GE(parts.by_length, static_cast<int64_t>(sizeof(TpaPrefillHeader)));
  EXPECT_EQ(parts.by_slot - parts.by_length,
            static_cast<int64_t>(1000 * sizeof(TpaPrefillTile)));
  EXPECT_EQ(parts.keys - parts.by_slot,
            static_cast<int64_t>(1000 * sizeof(TpaPrefillTile)));
  EXPECT_GE(parts.bytes - parts.keys,
            static_cast<int64_t>(3000 * sizeof(TpaPrefillKeyTile)));
  EXPECT_EQ(parts.by_length % 16, 0);
  EXPECT_EQ(parts.keys % 16, 0);
  EXPECT_EQ(parts.bytes % 128, 0);
}

TEST(TpaPrefillPlanTest, RefusesWhatItDoesNotSupport) {
  const auto refused = [](const TpaShape& shape,
                          const TpaPrefillLimits& limits) {
    return PlanTpaPrefill(shape, limits).query_tiles == 0;
  };
  const TpaPrefillLimits good = {1, 10, 10, kPlenty};
  EXPECT_FALSE(refused(kRank1, good));
  EXPECT_FALSE(refused(kRank2, good));
  EXPECT_FALSE(refused({4, 60, 12, 4, 1}, good));
  EXPECT_TRUE(refused({4, 62, 64, 4, 1}, good));
  EXPECT_TRUE(refused({4, 64, 62, 4, 1}, good));
  EXPECT_TRUE(refused({4, 64, 264, 4, 1}, good));
  EXPECT_TRUE(refused({129, 64, 64, 4, 1}, good));
  EXPECT_TRUE(refused({4, 64, 64, 33, 1}, good));
  EXPECT_TRUE(refused({4, 64, 64, 4, 5}, good));
  EXPECT_TRUE(refused(kRank1, {0, 10, 10, kPlenty}));
  EXPECT_TRUE(refused(kRank1, {kTpaPrefillMaxRows + 1, 10, 10, kPlenty}));
  EXPECT_TRUE(refused(kRank1, {1, 0, 10, kPlenty}));
  EXPECT_TRUE(refused(kRank1, {1, 10, int64_t{1} << 31, kPlenty}));
}

}  // namespace
}  // namespace recurve
