#include "client/cli/parse.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseIdListTest, TakesDigitsBetweenCommas) {
  EXPECT_THAT(ParseIdList("7").value(), ElementsAre(7));
  EXPECT_THAT(ParseIdList("1,0,4294967295").value(),
              ElementsAre(1, 0, 4294967295u));
}

TEST(ParseIdListTest, RefusesEverythingElse) {
  for (const char* text : {"", ",", "1,", ",1", "1,,2", " 1", "1 ", "-1", "+1",
                           "1.0", "0x1", "4294967296", "a"}) {
    const auto ids = ParseIdList(text);
    ASSERT_FALSE(ids.ok()) << text;
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(ParseIdList("1,x").status().message()),
              HasSubstr("'x' in '1,x'"));
}

TEST(ParseLogitBiasTest, TakesIdAndValue) {
  EXPECT_EQ(ParseLogitBias("5:-1.5").value(), std::make_pair(5u, -1.5f));
  EXPECT_EQ(ParseLogitBias("0:100").value(), std::make_pair(0u, 100.0f));
}

TEST(ParseLogitBiasTest, RefusesEverythingElse) {
  for (const char* text : {"", "5", "5:", ":1", "5:x", "5:1:2", "5:nan",
                           "5:inf", "-5:1", "5=1", "4294967296:1", "5:1e39"}) {
    EXPECT_EQ(ParseLogitBias(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(ParseCountRangeTest, TakesOneNumberOrTwo) {
  EXPECT_EQ(ParseCountRange("8")->min, 8u);
  EXPECT_EQ(ParseCountRange("8")->max, 8u);
  EXPECT_EQ(ParseCountRange("1:300")->min, 1u);
  EXPECT_EQ(ParseCountRange("1:300")->max, 300u);
  EXPECT_TRUE(ParseCountRange("3:3").ok());
}

TEST(ParseCountRangeTest, RefusesEverythingElse) {
  for (const char* text : {"", "0", "0:4", "5:4", ":4", "4:", "1:2:3", "-1:4",
                           "1-4", "1:4294967296"}) {
    EXPECT_EQ(ParseCountRange(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(ReadTextFileTest, ReadsAllBytesAndNamesAMissingFile) {
  const std::string path =
      testing::TempDir() + "/recurve_parse_test." + std::to_string(getpid());
  const std::string content(40000, 'x');
  std::ofstream(path) << content << "\n";
  EXPECT_EQ(ReadTextFile(path).value(), content + "\n");
  std::remove(path.c_str());
  const auto missing = ReadTextFile(path);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(path));
}

TEST(ReadTextFileTest, RefusesMoreThanItMayRead) {
  const std::string path = testing::TempDir() + "/recurve_parse_test_five." +
                           std::to_string(getpid());
  std::ofstream(path) << "12345";
  EXPECT_EQ(ReadTextFile(path, 5).value(), "12345");
  EXPECT_EQ(ReadTextFile(path, 4).status(),
            absl::InvalidArgumentError(
                absl::StrCat("'", path, "' has more than 4 bytes")));
  std::remove(path.c_str());
  // It has no end.
  EXPECT_TRUE(absl::IsInvalidArgument(
      ReadTextFile("/dev/zero", size_t{4} << 20).status()));
}

TEST(ReadTextFileTest, AFolderIsAnError) {
  EXPECT_FALSE(ReadTextFile(testing::TempDir()).ok());
}

TEST(IsProtobufStringTest, FollowsTheStandard) {
  for (const char* text :
       {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
        "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc2\x80z"}) {
    EXPECT_TRUE(IsProtobufString(text)) << testing::PrintToString(text);
  }
  for (const char* text :
       {"\x80", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe2\x82", "\xe0\x80\x80",
        "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80",
        "\xff", "a\xe2(\xa1", "\xc3\xa9\xa9"}) {
    EXPECT_FALSE(IsProtobufString(text)) << testing::PrintToString(text);
  }
  EXPECT_TRUE(IsProtobufString(absl::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace recurve
