#include "kernels/matmul/gated_matmul_plan.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace recurve {
namespace {

int Features(int64_t rows, int64_t features, int multiprocessors = 132) {
  return kGatedForms[ChooseGatedForm(rows, features, multiprocessors)].features;
}

// What was fastest on an H100, of the matrix of T6-XL.
TEST(GatedMatmulPlanTest, OfT6Xl) {
  for (const int64_t rows : {193, 256, 257, 384, 512})
    EXPECT_EQ(Features(rows, 4288), 72);
  for (const int64_t rows : {1024, 2048, 4096})
    EXPECT_EQ(Features(rows, 4288), 88);
}

// One round of large tiles is less than two of small ones.
TEST(GatedMatmulPlanTest, OneRoundOfLargeTiles) {
  EXPECT_EQ(Features(512, 33 * 128), 128);
  EXPECT_EQ(Features(512, 33 * 128 + 1), 72);
}

// Tiles are counted in 64 bits: with this many rounds a feature's cost decides.
TEST(GatedMatmulPlanTest, TheMostRows) {
  EXPECT_EQ(Features(int64_t{1} << 20, 1 << 27), 128);
  EXPECT_EQ(Features(int64_t{1} << 20, 4288), 128);
}

TEST(GatedMatmulPlanTest, Gates) {
  EXPECT_TRUE(IsGatedMatmul(8576, 1600, Activation::kSilu));
  EXPECT_FALSE(IsGatedMatmul(8576, 1600, Activation::kRelu));
  EXPECT_FALSE(IsGatedMatmul(2048, 1600, Activation::kSilu));
  EXPECT_TRUE(IsGatedMatmul(5460, 1024, Activation::kSilu));
  EXPECT_FALSE(IsGatedMatmul(5460, 5504, Activation::kSilu));
}

}  // namespace
}  // namespace recurve
