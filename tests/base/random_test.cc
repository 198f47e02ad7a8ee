#include "base/random.h"

#include "gtest/gtest.h"

namespace recurve {
namespace {

// Known answers of the authors' Random123 distribution (kat_vectors).
TEST(PhiloxTest, MatchesPublishedVectors) {
  EXPECT_EQ(Philox4x32(0, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
                                     0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(~0ull, ~0ull, ~0ull),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6,
                                     0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull,
                       0x0370734413198a2eull),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420,
                                     0x24126ea1}));
}

TEST(PhiloxTest, UniformStaysBelowOne) {
  EXPECT_EQ(UniformFloat(0), 0.0f);
  EXPECT_LT(UniformFloat(~0u), 1.0f);
}

}  // namespace
}  // namespace recurve
