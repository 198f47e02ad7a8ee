#include "kernels/sampling/sampling_plan.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace recurve {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int64_t kVocab = 50304;

TEST(SamplingPlanTest, FewSamplesHaveSeveralBlocks) {
  struct Range {
    int64_t first, last;
    int blocks;
  };
  for (const Range& range :
       {Range{1, 16, 8}, {17, 33, 4}, {34, 66, 2}, {67, 300, 1}}) {
    for (int64_t samples : {range.first, range.last}) {
      EXPECT_EQ(SampleBlocks(samples, kVocab, kMultiprocessors), range.blocks)
          << samples;
    }
  }
  EXPECT_EQ(SampleBlocks(1, kVocab, 7), 4);
  EXPECT_EQ(SampleBlocks(1, kVocab, 1), 1);
  EXPECT_EQ(SampleBlocks(INT32_MAX, kVocab, kMultiprocessors), 1);
}

TEST(SamplingPlanTest, EachBlockHasEnoughToDo) {
  EXPECT_EQ(SampleBlocks(1, 1, kMultiprocessors), 1);
  for (int blocks : {2, 4, 8}) {
    const int64_t fewest = blocks * kSampleFewestIds;
    EXPECT_EQ(SampleBlocks(1, fewest - 1, kMultiprocessors), blocks / 2);
    EXPECT_EQ(SampleBlocks(1, fewest, kMultiprocessors), blocks);
  }
  EXPECT_EQ(SampleBlocks(1, int64_t{1} << 23, kMultiprocessors),
            kSampleMostBlocks);
}

TEST(SamplingPlanTest, PartsAreTheRow) {
  for (int32_t vocab :
       {1, 5, 127, 128, 129, 1023, 1024, 1025, 50301, 50304, 1 << 23}) {
    for (int blocks : {1, 2, 4, 8}) {
      const int32_t part = SamplePart(vocab, blocks);
      EXPECT_EQ(part % 128, 0);
      EXPECT_GE(int64_t{part} * blocks, vocab);
      // No more than that asks for.
      EXPECT_LT(int64_t{part - 128} * blocks, vocab);
    }
  }
}

}  // namespace
}  // namespace recurve
