#include "kernels/matmul/wide_matmul_plan.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace recurve {
namespace {

constexpr int kMultiprocessors = 132;

int Form(int64_t rows, int64_t outputs) {
  return ChooseWideForm(rows, outputs, /*inputs=*/1600, kMultiprocessors);
}

// A matrix not in parts has the form with the fewest outputs in all waves.
TEST(WideMatmulPlanTest, FewRows) {
  for (const int64_t outputs : {8, 1600, 4096, 8532, 10560}) {
    EXPECT_EQ(Form(65, outputs), 0);
    EXPECT_EQ(Form(128, outputs), 0);
    EXPECT_GT(Form(129, outputs), 0);
  }
  for (const int64_t outputs : {10561, 12352, 24576, 32000}) {
    EXPECT_EQ(Form(65, outputs), 1);
    EXPECT_EQ(Form(128, outputs), 1);
    EXPECT_GT(Form(129, outputs), 1);
  }
}

// A matrix in parts with many outputs has forms of its own.
TEST(WideMatmulPlanTest, TallForms) {
  const auto form = [](int64_t rows, int64_t outputs) {
    return ChooseWideForm(rows, outputs, /*inputs=*/12288, kMultiprocessors);
  };
  EXPECT_EQ(form(65, 132 * 16), 0);
  for (const int64_t outputs : {132 * 16 + 1, 4096, 132 * 32}) {
    EXPECT_EQ(form(2, outputs), 5);
    EXPECT_EQ(form(64, outputs), 5);
    EXPECT_EQ(form(65, outputs), 7);
    EXPECT_EQ(form(128, outputs), 7);
    EXPECT_LT(form(129, outputs), 5);
  }
  EXPECT_EQ(form(64, 5120), 6);
  EXPECT_EQ(form(128, 5120), 8);
}

// What was fastest on an H200, of matrices of T6-XL.
TEST(WideMatmulPlanTest, OfMatricesInParts) {
  for (const int64_t rows : {129, 256, 320}) EXPECT_EQ(Form(rows, 1600), 1);
  for (const int64_t rows : {384, 512, 640}) EXPECT_EQ(Form(rows, 1600), 2);
  for (const int64_t rows : {768, 1024, 2048}) EXPECT_EQ(Form(rows, 1600), 3);
  for (const int64_t rows : {1536, 3072}) EXPECT_EQ(Form(rows, 1600), 4);
}

TEST(WideMatmulPlanTest, OfOthers) {
  for (const int64_t rows : {129, 256, 512, 768, 1024, 2048, 4096})
    EXPECT_EQ(Form(rows, 8532), 2);
  for (const int64_t rows : {257, 288, 384}) EXPECT_EQ(Form(rows, 8532), 3);
}

TEST(WideMatmulPlanTest, ClustersThatAreThereAtOnce) {
  for (const int64_t rows : {193, 256}) {
    EXPECT_TRUE(SharesPartsTiles(rows, 1600, kMultiprocessors));
    EXPECT_TRUE(SharesPartsTiles(rows, 15 * 128, kMultiprocessors));
    EXPECT_FALSE(SharesPartsTiles(rows, 15 * 128 + 1, kMultiprocessors));
  }
  EXPECT_FALSE(SharesPartsTiles(192, 1600, kMultiprocessors));
  EXPECT_FALSE(SharesPartsTiles(257, 1600, kMultiprocessors));
  EXPECT_FALSE(SharesPartsTiles(256, 1600, 114));
}

// Blocks are counted in 64 bits.
TEST(WideMatmulPlanTest, TheMostRows) {
  EXPECT_GE(Form(int64_t{1} << 20, 4095), 1);
  EXPECT_GE(Form(int64_t{1} << 20, 32000), 1);
}

}  // namespace
}  // namespace recurve
