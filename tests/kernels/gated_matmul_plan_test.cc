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

// Other devices, and tiles that are counted in 64 bits.
TEST(GatedMatmulPlanTest, AnySizes) {
  for (const int multiprocessors : {2, 3, 114, 144}) {
    for (const int64_t rows : {int64_t{193}, int64_t{1} << 20}) {
      for (const int64_t features : {2048, 1 << 27})
        EXPECT_GE(Features(rows, features, multiprocessors), 72);
    }
  }
}

}  // namespace
}  // namespace recurve
