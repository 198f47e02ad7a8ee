// How the gated delta rule on the GPU is cut: pure functions.

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_plan.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_plan.h"

namespace recurve {
namespace {

TEST(GatedDeltaPlanTest, StepSizes) {
  EXPECT_TRUE(DeltaStepDoes(16, 32, 128, 128));
  EXPECT_TRUE(DeltaStepDoes(1, 1, 1, 4));
  EXPECT_TRUE(DeltaStepDoes(3, 3, 256, 256));
  EXPECT_FALSE(DeltaStepDoes(0, 0, 128, 128));
  EXPECT_FALSE(DeltaStepDoes(2, 3, 128, 128));
  EXPECT_FALSE(DeltaStepDoes(4, 2, 128, 128));
  EXPECT_FALSE(DeltaStepDoes(1, 1, 257, 128));
  EXPECT_FALSE(DeltaStepDoes(1, 1, 0, 128));
  EXPECT_FALSE(DeltaStepDoes(1, 1, 128, 260));
  EXPECT_FALSE(DeltaStepDoes(1, 1, 128, 6));
}

TEST(GatedDeltaPlanTest, ClustersOfTheStep) {
  // Blocks that share a convolution: all columns of a key head's value heads.
  EXPECT_EQ(DeltaStepCluster(16, 32, 128, true, true), 2);
  EXPECT_EQ(DeltaStepCluster(16, 48, 128, true, true), 3);
  EXPECT_EQ(DeltaStepCluster(30, 30, 192, true, false), 2);
  EXPECT_EQ(DeltaStepCluster(16, 32, 256, false, true), 2);
  EXPECT_EQ(DeltaStepCluster(16, 32, 128, false, true), 1);
  EXPECT_EQ(DeltaStepCluster(16, 32, 256, false, false), 1);
  EXPECT_EQ(DeltaStepCluster(16, 32, 128, true, true, 64), 4);
  EXPECT_EQ(DeltaStepCluster(30, 30, 192, true, false, 64), 3);
}

TEST(GatedDeltaPlanTest, ColumnsOfTheStep) {
  EXPECT_EQ(DeltaStepColumns(16, 32, 128, 1, true, true), 64);
  EXPECT_EQ(DeltaStepColumns(16, 32, 128, 4, false, false), 64);
  EXPECT_EQ(DeltaStepColumns(16, 32, 128, 5, true, true), 128);
  EXPECT_EQ(DeltaStepColumns(16, 32, 64, 100, true, true), 64);
  // Narrow blocks would be too large a cluster.
  EXPECT_EQ(DeltaStepColumns(1, 8, 128, 1, true, true), 128);
  EXPECT_EQ(DeltaStepColumns(1, 8, 128, 1, false, true), 64);
}

TEST(GatedDeltaPlanTest, StepsOfFewHeads) {
  const auto columns = [](int64_t keys, int64_t values, int64_t sequences,
                          int64_t dim = 128, int64_t conv = 4,
                          bool norms = true, bool by_channel = false) {
    return DeltaFewColumns(keys, values, dim, 128, sequences, conv, norms,
                           by_channel);
  };
  EXPECT_EQ(columns(16, 32, 1), 32);
  EXPECT_EQ(columns(16, 32, 4), 32);
  EXPECT_EQ(columns(16, 32, 5), 0);
  // Blocks that share a convolution are one cluster.
  EXPECT_EQ(columns(16, 48, 1), 64);
  EXPECT_EQ(columns(1, 4, 1), 64);
  EXPECT_EQ(columns(1, 5, 1), 0);
  EXPECT_EQ(columns(1, 5, 1, 128, 0, false), 32);
  EXPECT_EQ(columns(16, 32, 1, 128, 0, false), 32);
  // What it does not do.
  EXPECT_EQ(columns(16, 32, 1, 96), 0);
  EXPECT_EQ(columns(16, 32, 1, 128, 3), 0);
  EXPECT_EQ(columns(16, 32, 1, 128, 4, false), 0);
  EXPECT_EQ(columns(16, 32, 1, 128, 0, true), 0);
  EXPECT_EQ(columns(16, 32, 1, 128, 4, true, true), 0);
}

TEST(GatedDeltaPlanTest, StepsThatStream) {
  const auto streams = [](int64_t keys, int64_t values, int64_t sequences) {
    return DeltaStepStreams(keys, values, 128, 128, sequences,
                            /*convolves=*/true, 132);
  };
  for (int64_t sequences : {32, 33, 64, 128, 256, 65535}) {
    EXPECT_TRUE(streams(16, 32, sequences)) << sequences;
  }
  EXPECT_FALSE(streams(16, 32, 0));
  EXPECT_FALSE(streams(16, 32, 1));
  EXPECT_FALSE(streams(16, 32, 8));
  // 3 heads a multiprocessor.
  EXPECT_FALSE(streams(1, 1, 395));
  EXPECT_TRUE(streams(1, 1, 396));
  EXPECT_FALSE(streams(1, 4, 98));
  EXPECT_TRUE(streams(1, 4, 99));
  // The fullest block has 3/2 of the mean, or more.
  EXPECT_TRUE(streams(1, 4, 132));
  EXPECT_FALSE(streams(1, 4, 133));
  EXPECT_FALSE(streams(1, 4, 175));
  EXPECT_TRUE(streams(1, 4, 176));
  EXPECT_FALSE(streams(1, 8, 87));
  EXPECT_TRUE(streams(1, 8, 88));
}

TEST(GatedDeltaPlanTest, SizesThatStream) {
  const auto streams = [](int64_t dim, int64_t width) {
    return DeltaStepStreams(16, 32, dim, width, 128, /*convolves=*/true, 132);
  };
  EXPECT_TRUE(streams(128, 128));
  EXPECT_TRUE(streams(128, 68));
  EXPECT_TRUE(streams(64, 128));
  EXPECT_FALSE(streams(63, 128));
  EXPECT_FALSE(streams(129, 128));
  EXPECT_FALSE(streams(128, 132));
  EXPECT_FALSE(streams(128, 64));  // a narrow block takes it whole
  EXPECT_FALSE(DeltaStepStreams(16, 32, 128, 128, 128, true, 0));
  EXPECT_TRUE(DeltaStepStreams(16, 32, 128, 128, 49, false, 132));
  EXPECT_FALSE(DeltaStepStreams(16, 32, 128, 128, 50, false, 132));
}

TEST(GatedDeltaPlanTest, PromptSizes) {
  EXPECT_TRUE(DeltaPrefillDoes(16, 32, 128, 128));
  EXPECT_TRUE(DeltaPrefillDoes(1, 1, 8, 8));
  EXPECT_TRUE(DeltaPrefillDoes(30, 30, 96, 192));
  EXPECT_FALSE(DeltaPrefillDoes(1, 1, 136, 128));
  EXPECT_FALSE(DeltaPrefillDoes(1, 1, 128, 264));
  EXPECT_FALSE(DeltaPrefillDoes(1, 1, 100, 128));
  EXPECT_FALSE(DeltaPrefillDoes(2, 3, 128, 128));
}

TEST(GatedDeltaPlanTest, ChunksEndAtMultiplesOfThePosition) {
  EXPECT_EQ(DeltaChunks(0, 0), 0);
  EXPECT_EQ(DeltaChunks(17, 0), 0);
  EXPECT_EQ(DeltaChunks(0, 1), 1);
  EXPECT_EQ(DeltaChunks(0, 64), 1);
  EXPECT_EQ(DeltaChunks(0, 65), 2);
  EXPECT_EQ(DeltaChunks(63, 1), 1);
  EXPECT_EQ(DeltaChunks(63, 2), 2);
  EXPECT_EQ(DeltaChunks(64, 64), 1);
  EXPECT_EQ(DeltaChunks(10, 118), 2);
}

// For any division of the tokens among rows, a round's chunks fit, and rounds
// cover the longest row.
TEST(GatedDeltaPlanTest, RoundsCoverAllChunksAndFit) {
  for (int64_t rows : {1, 2, 7}) {
    for (int64_t tokens : {1, 63, 64, 65, 1000, 32768}) {
      for (int64_t capacity : {1, 6, 7, 20, 600, 100000}) {
        SCOPED_TRACE(testing::Message()
                     << rows << " rows, " << tokens << " tokens, " << capacity);
        const DeltaPrefillPlan plan = PlanDeltaPrefill(tokens, rows, capacity);
        if (plan.rounds == 0) {
          EXPECT_LT(capacity, rows);
          continue;
        }
        EXPECT_LE(plan.total, capacity);
        for (int64_t offset : {0, 1, 63}) {
          // One row has all of the tokens but one for each other row.
          const int64_t longest =
              DeltaChunks(offset, std::max<int64_t>(1, tokens - rows + 1));
          EXPECT_GE(plan.rounds * plan.chunks, longest);
          EXPECT_LE(std::min(longest, plan.chunks) + rows - 1, plan.total);
        }
      }
    }
  }
}

}  // namespace
}  // namespace recurve
