#include "base/huge_pages.h"

#include <cstdint>
#include <numeric>
#include <utility>

#include "gtest/gtest.h"

namespace recurve {
namespace {

constexpr size_t kHugePage = 2 << 20;

TEST(HugePagesTest, VectorsOfAnySizeKeepTheirElements) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kHugePage - 1, kHugePage,
                             kHugePage + 1, 3 * kHugePage + 4096}) {
    HugePageVector<uint8_t> bytes_of(bytes);
    std::iota(bytes_of.begin(), bytes_of.end(), uint8_t{0});
    const HugePageVector<uint8_t> copy = bytes_of;
    const HugePageVector<uint8_t> moved = std::move(bytes_of);
    ASSERT_EQ(moved.size(), bytes);
    EXPECT_EQ(copy, moved);
    for (size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(moved[i], static_cast<uint8_t>(i)) << i;
    }
  }
}

TEST(HugePagesTest, LargeOnesBeginAtAPage) {
  const HugePageVector<float> large(kHugePage / sizeof(float) + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % kHugePage, 0u);
}

}  // namespace
}  // namespace recurve
