#include "tools/recurve_model/random_values.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

std::vector<float> Draw(const RandomValues& values, int64_t first,
                        int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  values.Fill(DType::kFloat32, first, count,
              reinterpret_cast<char*>(out.data()));
  return out;
}

TEST(RandomValuesTest, AreAFunctionOfSeedNameAndIndex) {
  const auto whole = Draw(RandomValues(7, "a", 0, 1), 0, 100);
  const auto tail = Draw(RandomValues(7, "a", 0, 1), 60, 40);
  EXPECT_EQ(std::vector<float>(whole.begin() + 60, whole.end()), tail);
  EXPECT_NE(Draw(RandomValues(8, "a", 0, 1), 0, 100), whole);
  EXPECT_NE(Draw(RandomValues(7, "b", 0, 1), 0, 100), whole);
}

// What is written today is written for ever: load tests compare.
TEST(RandomValuesTest, ArePinned) {
  EXPECT_THAT(Draw(RandomValues(0, "model.embed_tokens.weight", 0, 1), 0, 4),
              testing::ElementsAre(0x1.2264aep+0f, 0x1.bd00b2p-1f,
                                   -0x1.4728d4p-5f, -0x1.0dbb04p-1f));
}

TEST(RandomValuesTest, AreNormal) {
  constexpr int64_t kCount = 200'000;
  const auto values = Draw(RandomValues(1, "a", 2, 3), 0, kCount);
  double sum = 0;
  for (const float value : values) sum += value;
  const double mean = sum / kCount;
  double square = 0;
  double fourth = 0;
  int64_t beyond_two = 0;
  for (const float value : values) {
    const double z = (value - mean) / 3;
    square += z * z;
    fourth += z * z * z * z;
    beyond_two += std::abs(z) > 2 ? 1 : 0;
  }
  // Five standard errors; the seed is fixed.
  EXPECT_NEAR(mean, 2, 0.034);
  EXPECT_NEAR(square / kCount, 1, 0.016);
  EXPECT_NEAR(fourth / kCount, 2.85, 0.1);
  EXPECT_NEAR(static_cast<double>(beyond_two) / kCount, 0.0455, 0.004);
}

TEST(RandomValuesTest, NarrowTypesAreTheRoundedFloats) {
  const RandomValues values(3, "a", 0, 0.1);
  const auto exact = Draw(values, 5, 50);
  std::vector<uint16_t> bits(50);
  values.Fill(DType::kBFloat16, 5, 50, reinterpret_cast<char*>(bits.data()));
  for (size_t i = 0; i < bits.size(); ++i)
    EXPECT_EQ(bits[i], FloatToBFloat16(exact[i]));
  values.Fill(DType::kFloat16, 5, 50, reinterpret_cast<char*>(bits.data()));
  for (size_t i = 0; i < bits.size(); ++i)
    EXPECT_EQ(bits[i], FloatToFloat16(exact[i]));
}

}  // namespace
}  // namespace recurve
