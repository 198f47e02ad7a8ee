#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/grpc/wire.h"

namespace recurve {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::Pair;

TEST(GrpcTimeoutTest, HasSixUnits) {
  EXPECT_EQ(ParseGrpcTimeout("2H"), hours(2));
  EXPECT_EQ(ParseGrpcTimeout("3M"), minutes(3));
  EXPECT_EQ(ParseGrpcTimeout("4S"), seconds(4));
  EXPECT_EQ(ParseGrpcTimeout("5m"), milliseconds(5));
  EXPECT_EQ(ParseGrpcTimeout("6u"), microseconds(6));
  EXPECT_EQ(ParseGrpcTimeout("7n"), nanoseconds(7));
}

TEST(GrpcTimeoutTest, HasOneToEightDigits) {
  for (const char* unit : {"H", "M", "S", "m", "u", "n"}) {
    EXPECT_EQ(ParseGrpcTimeout(std::string("0") + unit), nanoseconds(0));
    EXPECT_EQ(ParseGrpcTimeout(std::string("00000000") + unit), nanoseconds(0));
  }
  EXPECT_EQ(ParseGrpcTimeout("00000001S"), seconds(1));
  EXPECT_EQ(ParseGrpcTimeout("99999999n"), nanoseconds(99'999'999));
  EXPECT_EQ(ParseGrpcTimeout("99999999u"), microseconds(99'999'999));
  EXPECT_EQ(ParseGrpcTimeout("99999999m"), milliseconds(99'999'999));
  EXPECT_EQ(ParseGrpcTimeout("99999999S"), seconds(99'999'999));
  EXPECT_EQ(ParseGrpcTimeout("100000000S"), std::nullopt);
  EXPECT_EQ(ParseGrpcTimeout("000000001S"), std::nullopt);
}

// And can be added to any time of the clock.
TEST(GrpcTimeoutTest, TheLongestAreTenYears) {
  const nanoseconds ten_years = hours(10 * 365 * 24);
  EXPECT_EQ(ParseGrpcTimeout("87599H"), hours(87'599));
  EXPECT_EQ(ParseGrpcTimeout("87600H"), ten_years);
  EXPECT_EQ(ParseGrpcTimeout("87601H"), ten_years);
  EXPECT_EQ(ParseGrpcTimeout("99999999H"), ten_years);
  EXPECT_EQ(ParseGrpcTimeout("5255999M"), minutes(5'255'999));
  EXPECT_EQ(ParseGrpcTimeout("5256001M"), ten_years);
  EXPECT_EQ(ParseGrpcTimeout("99999999M"), ten_years);
}

TEST(GrpcTimeoutTest, AnythingElseIsMalformed) {
  for (const std::string text :
       {"",     "1",    "S",   "m",   "1s",  "1h",  "1N",
        "1U",   "1ms",  "1S ", " 1S", "-1S", "+1S", "1.5S",
        "1e3S", "0x1S", "1 S", "SS",  "1S1", "S1",  "１S"}) {
    EXPECT_EQ(ParseGrpcTimeout(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseGrpcTimeout(std::string("1\0S", 3)), std::nullopt);
  EXPECT_EQ(ParseGrpcTimeout(std::string(1 << 20, '1') + "S"), std::nullopt);
}

TEST(GrpcContentTypeTest, IsThatOfProtobuf) {
  for (const char* type :
       {"application/grpc", "application/grpc+proto", "Application/GRPC",
        "application/grpc;charset=utf-8", "application/grpc ; x=y",
        "application/grpc+proto;x=y", "application/grpc+proto ;x=y"}) {
    EXPECT_TRUE(IsGrpcContentType(type)) << type;
  }
  for (const char* type :
       {"", "application/grp", "application/json", "application/grpc+json",
        "application/grpc-web", "application/grpc-web+proto",
        "application/grpcx", "application/grpc+protobuf", "application/grpc+",
        "application/grpc+proto+proto", " application/grpc", "text/html"}) {
    EXPECT_FALSE(IsGrpcContentType(type)) << type;
  }
}

TEST(GrpcMessageTest, PrintableTextStaysAsItIs) {
  std::string printable;
  for (char c = ' '; c <= '~'; ++c) {
    if (c != '%') printable.push_back(c);
  }
  EXPECT_EQ(PercentEncoded(printable), printable);
  EXPECT_EQ(PercentEncoded(""), "");
}

TEST(GrpcMessageTest, OtherBytesAreEncoded) {
  EXPECT_EQ(PercentEncoded("100%"), "100%25");
  EXPECT_EQ(PercentEncoded("%41"), "%2541");
  EXPECT_EQ(PercentEncoded("a\r\nb\tc"), "a%0D%0Ab%09c");
  EXPECT_EQ(PercentEncoded(std::string("\0\x1f\x7f\x80\xff", 5)),
            "%00%1F%7F%80%FF");
  EXPECT_EQ(PercentEncoded("für €"), "f%C3%BCr %E2%82%AC");
  EXPECT_EQ(PercentEncoded("\xf0\x9f\x98\x80"), "%F0%9F%98%80");
}

TEST(GrpcStatusTest, ComesBeforeOtherTrailers) {
  EXPECT_THAT(StatusTrailers(absl::OkStatus(), {}),
              ElementsAre(Pair("grpc-status", "0")));
  EXPECT_THAT(StatusTrailers(absl::NotFoundError("no %"), {{"a", "b"}}),
              ElementsAre(Pair("grpc-status", "5"),
                          Pair("grpc-message", "no %25"), Pair("a", "b")));
  EXPECT_THAT(StatusTrailers(absl::UnauthenticatedError(""), {}),
              ElementsAre(Pair("grpc-status", "16")));
}

// Clients take 8 KiB of metadata, and encoded bytes are three.
TEST(GrpcStatusTest, ALongMessageIsCutBetweenCharacters) {
  const auto message = [](const std::string& text) {
    return StatusTrailers(absl::InternalError(text), {})[1].second;
  };
  const std::string most(2048, 'x');
  EXPECT_EQ(message(most), most);
  EXPECT_EQ(message(most + "x"), most + "... (2049 bytes)");
  // A character of two bytes, from 2047 on.
  const std::string odd = std::string(2047, 'x') + "ü";
  EXPECT_EQ(message(odd), std::string(2047, 'x') + "... (2049 bytes)");
  std::string euros;
  for (int i = 0; i < 100'000; ++i) euros += "€";
  const std::string cut = message(euros);
  EXPECT_LT(cut.size(), 7000u);
  EXPECT_EQ(cut.find("... (300000 bytes)"), 2046u * 3);
  // No UTF-8.
  EXPECT_EQ(message(std::string(3000, '\x80')), "... (3000 bytes)");
}

TEST(GrpcResponseTest, BeginsWithItsHeaders) {
  EXPECT_THAT(WithResponseHead({{"a", "b"}, {"c", "d"}}),
              ElementsAre(Pair(":status", "200"),
                          Pair("content-type", "application/grpc"),
                          Pair("grpc-accept-encoding", "identity"),
                          Pair("a", "b"), Pair("c", "d")));
}

}  // namespace
}  // namespace recurve
