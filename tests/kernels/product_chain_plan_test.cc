#include "kernels/matmul/product_chain_plan.h"

#include <vector>

#include "gtest/gtest.h"

namespace recurve {
namespace {

constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kSharedMemory = 232448;
constexpr ProductChainShape kT6Xl = {1,    1600, 4992, 4266,
                                     1600, 4288, 1420, 1600};

bool Takes(const ProductChainShape& shape,
           int64_t multiprocessors = kMultiprocessors,
           int64_t shared_memory = kSharedMemory) {
  return PlanProductChain(shape, multiprocessors, shared_memory).slots > 0;
}

TEST(ProductChainPlanTest, FillsABlock) {
  const ProductChainPlan plan =
      PlanProductChain(kT6Xl, kMultiprocessors, kSharedMemory);
  EXPECT_EQ(plan.slots, 52);
  EXPECT_EQ(plan.row_bytes, 2 * 4992 + kChainSlack);
  EXPECT_LE(plan.bytes, kSharedMemory);
  EXPECT_GT(plan.bytes + kChainCopyWarps * (kChainStageBytes + 16),
            kSharedMemory);
}

TEST(ProductChainPlanTest, RowsShareABlocksMemory) {
  const auto plan = [](int64_t rows, int64_t out_inputs = 4992) {
    ProductChainShape shape = kT6Xl;
    shape.rows = rows;
    shape.out_inputs = out_inputs;
    return PlanProductChain(shape, kMultiprocessors, kSharedMemory);
  };
  EXPECT_EQ(plan(2).slots, 50);
  EXPECT_EQ(plan(4).slots, 46);
  for (const int64_t rows : {2, 4}) {
    // ldmatrix reads 16 bytes of each row at a time.
    EXPECT_EQ(plan(rows).row_bytes % 128, 16);
    EXPECT_LE(plan(rows).bytes, kSharedMemory);
  }
  for (const int64_t rows : {0, 3, 8}) EXPECT_EQ(plan(rows).slots, 0);
  // So long a row is taken alone, and two, but not four.
  EXPECT_EQ(plan(4, 8064).slots, kChainMinSlots);
  EXPECT_EQ(plan(4, 8128).slots, 0);
  EXPECT_GT(plan(2, 8128).slots, kChainMinSlots);
}

TEST(ProductChainPlanTest, SizesDecide) {
  const auto with = [](auto change) {
    ProductChainShape shape = kT6Xl;
    change(shape);
    return Takes(shape);
  };
  EXPECT_TRUE(Takes(kT6Xl));
  EXPECT_TRUE(
      Takes({1, 1280, 3904, 3456, 1280, 3456, 1250, 1280}));  // T6-large
  EXPECT_TRUE(
      Takes({1, 1024, 3008, 2752, 1024, 2752, 1110, 1024}));  // T6-medium
  // Without a fourth product its sizes do not count.
  EXPECT_TRUE(with([](auto& s) { s.next_outputs = s.next_inputs = 0; }));
  // Norms have another order of sums, or do not fit a block's registers.
  EXPECT_FALSE(with([](auto& s) { s.width = 512; }));
  EXPECT_TRUE(with([](auto& s) { s.width = 513; }));
  EXPECT_TRUE(
      with([](auto& s) { s.width = s.up_inputs = s.next_inputs = 2048; }));
  EXPECT_FALSE(with([](auto& s) { s.width = 2049; }));
  EXPECT_FALSE(with([](auto& s) { s.up_inputs = 2112; }));
  EXPECT_FALSE(with([](auto& s) { s.next_inputs = 2112; }));
  // Half a chunk.
  EXPECT_FALSE(with([](auto& s) { s.out_inputs = 4960; }));
  EXPECT_FALSE(with([](auto& s) { s.up_inputs = 1632; }));
  EXPECT_FALSE(with([](auto& s) { s.down_inputs = 4320; }));
  EXPECT_FALSE(with([](auto& s) { s.next_inputs = 1632; }));
  // Matrices that would be in parts, or not.
  EXPECT_FALSE(with([](auto& s) { s.features = 2047; }));
  EXPECT_TRUE(with([](auto& s) { s.features = 2048; }));
  EXPECT_FALSE(with([](auto& s) { s.next_outputs = 4096; }));
  // More tiles than blocks, or warps.
  EXPECT_TRUE(with([](auto& s) { s.next_outputs = 132 * 16; }));
  EXPECT_FALSE(with([](auto& s) { s.next_outputs = 132 * 16 + 1; }));
  EXPECT_TRUE(with([](auto& s) { s.features = 132 * 8 * 8; }));
  EXPECT_FALSE(with([](auto& s) { s.features = 132 * 8 * 8 + 1; }));
  // A row that leaves no room for the ring: copies must not come round to a
  // stage that has not been waited for.
  const auto slots = [](int64_t out_inputs) {
    ProductChainShape shape = kT6Xl;
    shape.out_inputs = out_inputs;
    return PlanProductChain(shape, kMultiprocessors, kSharedMemory).slots;
  };
  int64_t most = kT6Xl.out_inputs;
  while (slots(most + kChainChunk) > 0) most += kChainChunk;
  EXPECT_EQ(slots(most), kChainMinSlots);
  EXPECT_FALSE(with([](auto& s) { s.up_inputs = 1536; }));
  EXPECT_FALSE(with([](auto& s) { s.next_inputs = 1536; }));
  EXPECT_FALSE(with([](auto& s) { s.out_inputs = 90048; }));
  EXPECT_FALSE(with([](auto& s) { s.out_inputs = 1 << 20; }));
}

// Each tile is one block's, whatever is late, and no block has more than it has
// warps.
TEST(ProductChainPlanTest, SharesOutTiles) {
  for (const int blocks : {1, 2, 7, 100, 132}) {
    for (const int first : {1, blocks / 2, blocks - 1, blocks}) {
      if (first < 1) continue;
      for (int tiles = 1; tiles <= kChainWarps * blocks;
           tiles += 1 + tiles / 9) {
        for (const int late : {-1, 0, 1, blocks - first, blocks - first + 1,
                               (blocks - first) / 2, 1000}) {
          std::vector<int> owners(tiles, 0);
          for (int role = 0; role < blocks; ++role) {
            const ProductChainTiles own =
                ShareChainTiles(tiles, blocks, first, late, role);
            ASSERT_GE(own.count, 0);
            ASSERT_LE(own.count, kChainWarps);
            for (int i = 0; i < own.count; ++i) ++owners.at(own.tile + i);
          }
          ASSERT_EQ(owners, std::vector<int>(tiles, 1))
              << blocks << " " << first << " " << late;
        }
      }
    }
  }
}

TEST(ProductChainPlanTest, LateBlocksHaveFewTiles) {
  const auto count = [](int late, int role) {
    return ShareChainTiles(534, 132, 100, late, role).count;
  };
  EXPECT_EQ(count(16, 0), 5);
  EXPECT_EQ(count(16, 99), 5);
  EXPECT_EQ(count(16, 100), 3);
  EXPECT_EQ(count(16, 116), 0);
  EXPECT_EQ(count(16, 131), 0);
  // All that have no part of the first product are late.
  EXPECT_EQ(count(32, 100), 2);
  EXPECT_EQ(count(32, 131), 0);
  // So are others.
  EXPECT_EQ(count(33, 0), 4);
  EXPECT_EQ(count(33, 131), 5);
  EXPECT_EQ(count(0, 0), 4);
}

TEST(ProductChainPlanTest, PaceIsKnownForAll) {
  for (const bool clusters : {false, true}) {
    for (const int rows : {1, 2, 4}) {
      const ProductChainPace pace = ChainPace(clusters, rows);
      for (const int rounds : {pace.early, pace.out, pace.up, pace.rest}) {
        EXPECT_GE(rounds, 1);
        EXPECT_LE(rounds, kChainMostRoundsAhead);
      }
    }
  }
}

// Each tile of the fourth product is one block's.
TEST(ProductChainPlanTest, SharesOutNextTiles) {
  for (const int blocks : {1, 7, 132}) {
    for (int tiles = 1; tiles <= blocks; ++tiles) {
      for (int late = 0; late <= blocks; ++late) {
        for (const bool clusters : {false, true}) {
          std::vector<int> owners(tiles, 0);
          for (int role = 0; role < blocks; ++role) {
            const int tile = ChainNextTile(tiles, blocks, late, clusters, role);
            if (tile >= 0 && tile < tiles) ++owners.at(tile);
          }
          ASSERT_EQ(owners, std::vector<int>(tiles, 1))
              << blocks << " " << tiles << " " << late << " " << clusters;
        }
      }
    }
  }
}

TEST(ProductChainPlanTest, LateBlocksBesideClustersHaveNoNextTiles) {
  const auto has = [](int late, int role, bool clusters = true) {
    const int tile = ChainNextTile(89, 132, late, clusters, role);
    return tile >= 0 && tile < 89;
  };
  // T6-XL's clusters are 32 blocks.
  EXPECT_FALSE(has(32, 10));
  EXPECT_TRUE(has(32, 11));
  EXPECT_TRUE(has(32, 99));
  EXPECT_FALSE(has(32, 100));
  // Those of two rows are 64: the others are not enough.
  EXPECT_TRUE(has(64, 0));
  EXPECT_TRUE(has(64, 88));
  EXPECT_FALSE(has(64, 89));
  // None is late, or there are no clusters.
  EXPECT_TRUE(has(0, 131));
  EXPECT_TRUE(has(32, 131, false));
  EXPECT_FALSE(has(32, 42, false));
}

TEST(ProductChainPlanTest, AnyDevice) {
  EXPECT_TRUE(Takes(kT6Xl, 100));
  EXPECT_FALSE(Takes(kT6Xl, 99));
  EXPECT_FALSE(Takes(kT6Xl, 0));
  EXPECT_FALSE(Takes(kT6Xl, kMultiprocessors, 0));
}

}  // namespace
}  // namespace recurve
