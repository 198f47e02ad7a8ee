#include "base/byte_size.h"

#include <limits>

#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(ByteSizeTest, ReadsNumbersAndUnits) {
  const std::pair<const char*, int64_t> good[] = {
      {"1", 1},
      {"1500", 1500},
      {"7B", 7},
      {"2KiB", 2048},
      {"24GiB", int64_t{24} << 30},
      {"1.5GiB", int64_t{3} << 29},
      {"80GB", 80'000'000'000},
      // As Kubernetes writes them.
      {"3Ki", 3 << 10},
      {"512Mi", int64_t{512} << 20},
      {"1.5Gi", int64_t{3} << 29},
      {"2Ti", int64_t{2} << 40},
      {"0.001kB", 1},
      {"9223372036854775807", std::numeric_limits<int64_t>::max()},
  };
  for (const auto& [text, bytes] : good) {
    const auto parsed = ParseByteSize(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ByteSizeTest, ZeroWhereItMayBe) {
  for (const char* text : {"0", "0GiB", "0.0001kB"}) {
    EXPECT_EQ(ParseByteSize(text, 0).value_or(-1), 0) << text;
  }
  EXPECT_FALSE(ParseByteSize("-1", 0).ok());
}

TEST(ByteSizeTest, RefusesTheRest) {
  for (const char* text :
       {"", "0", "GiB", "-1", "1 GiB", "1gib", "1gi", "Gi", "1G", "1.5",
        "0.0001kB", "1.2.3GiB", "9223372036854775808", "8388608TiB",
        "8388608.0TiB", "1e9", "inf"}) {
    const auto parsed = ParseByteSize(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(ByteSizeTest, Writes) {
  EXPECT_EQ(HumanBytes(0), "0 bytes");
  EXPECT_EQ(HumanBytes(1023), "1023 bytes");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes((int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{24} << 30), "24.0 GiB");
  EXPECT_EQ(ExactBytes(12), "12 bytes");
  EXPECT_EQ(ExactBytes(1536), "1536 (1.5 KiB)");
}

}  // namespace
}  // namespace recurve
