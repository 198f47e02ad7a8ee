#include "server/services/output_parts.h"

#include <string>

#include "gtest/gtest.h"
#include "server/requests/convert.h"

namespace recurve {
namespace {

TEST(OutputPartsTest, AreNoLongerThanTheLimitButForOnePiece) {
  OutputParts<std::string> parts;
  EXPECT_TRUE(parts.empty());
  parts.Grow(0, 0) += "a";
  parts.Grow(1, kMaxPartBytes - 10) += "b";
  parts.Grow(2, 10) += "c";
  parts.Grow(0, 0) += "d";  // no bytes: no new one
  parts.Grow(4, 1) += "e";
  parts.Grow(0, 2 * kMaxPartBytes) += "f";
  parts.Grow(0, 1) += "g";
  EXPECT_EQ(parts.tokens(), 7);
  EXPECT_EQ(parts.bytes(), 3 * kMaxPartBytes + 2);
  EXPECT_EQ(parts.TakeFirst(), "abcd");
  EXPECT_EQ(parts.tokens(), 4);
  EXPECT_EQ(parts.bytes(), 2 * kMaxPartBytes + 2);
  EXPECT_EQ(parts.TakeFirst(), "e");
  EXPECT_EQ(parts.TakeFirst(), "f");
  EXPECT_EQ(parts.TakeFirst(), "g");
  EXPECT_TRUE(parts.empty());
  EXPECT_EQ(parts.tokens(), 0);
  EXPECT_EQ(parts.bytes(), 0);
}

TEST(OutputPartsTest, AStepTakesNoMoreBytesThanCounted) {
  StepEvent event;
  event.has_token = true;
  event.token = 2'147'483'647;
  event.text = std::string(100, 'x');
  event.logprob = -1.5f;
  for (int i = 0; i < 20; ++i) event.top_logprobs.emplace_back(event.token, -2);
  v1::Tokens tokens;
  int64_t counted = 0;
  for (int i = 0; i < 100; ++i) {
    AppendStep(event, /*with_logprobs=*/true, &tokens);
    counted += StepBytes(event, /*with_logprobs=*/true);
  }
  // The lengths of the lists are counted once.
  constexpr int64_t kFrame = 16;
  const auto bytes = static_cast<int64_t>(tokens.ByteSizeLong());
  EXPECT_LE(bytes, counted + kFrame);
  EXPECT_GE(bytes, counted * 9 / 10);
  EXPECT_EQ(StepBytes(event, /*with_logprobs=*/false), 105);
}

}  // namespace
}  // namespace recurve
