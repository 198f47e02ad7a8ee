#include "base/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(DTypeTest, NamesRoundTrip) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32}) {
    ASSERT_TRUE(ParseDType(Name(dtype)).ok());
    EXPECT_EQ(*ParseDType(Name(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("float8").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DTypeTest, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBFloat16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808000u)),
            0x3f80);  // tie, even below
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f818000u)),
            0x3f82);  // tie, even above
  EXPECT_EQ(FloatToBFloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
  // A NaN whose payload lies in the lower half only must not become infinity.
  EXPECT_TRUE(std::isnan(
      BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DTypeTest, BFloat16IsExactBothWays) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = BFloat16ToFloat(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      EXPECT_EQ(FloatToBFloat16(value), bits);
    }
  }
}

TEST(DTypeTest, Float16CoversEveryClass) {
  EXPECT_EQ(Float16ToFloat(0x0000), 0.0f);
  EXPECT_TRUE(std::signbit(Float16ToFloat(0x8000)));
  EXPECT_EQ(Float16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x0400), 0x1p-14f);
  EXPECT_EQ(Float16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(Float16ToFloat(0xc500), -5.0f);
  EXPECT_EQ(Float16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(Float16ToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(Float16ToFloat(0x7e01)));
}

TEST(DTypeTest, Float16IsExactBothWays) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = Float16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(value))));
    } else {
      EXPECT_EQ(FloatToFloat16(value), bits);
    }
  }
}

TEST(DTypeTest, Float16RoundsToNearestEven) {
  // Between every two neighbours: the tie goes to the even one, and the least
  // step off it to the nearer one. The last one's neighbour is infinity.
  for (uint32_t bits = 0; bits < 0x7c00u; ++bits) {
    const float low = Float16ToFloat(static_cast<uint16_t>(bits));
    const float high = bits == 0x7bff
                           ? 65536.0f
                           : Float16ToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // exact
    EXPECT_EQ(FloatToFloat16(middle), bits + (bits & 1u)) << bits;
    EXPECT_EQ(FloatToFloat16(std::nextafter(middle, 0.0f)), bits) << bits;
    EXPECT_EQ(FloatToFloat16(std::nextafter(middle, 1e6f)), bits + 1) << bits;
    EXPECT_EQ(FloatToFloat16(-middle), (bits + (bits & 1u)) | 0x8000u) << bits;
  }
  EXPECT_EQ(FloatToFloat16(std::numeric_limits<float>::max()), 0x7c00);
}

}  // namespace
}  // namespace recurve
