#include "server/grpc/message_reader.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::HasSubstr;

constexpr size_t kMax = 1000;

std::string Prefix(uint32_t length, char flag = '\0') {
  std::string bytes(1, flag);
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(length >> shift));
  }
  return bytes;
}

bool IsComplete(const MessageReader& reader) {
  bool complete = false;
  const absl::Status status = reader.Check(&complete);
  EXPECT_TRUE(status.ok()) << status;
  return complete;
}

TEST(MessageReaderTest, AMessageHasItsLengthBeforeIt) {
  EXPECT_EQ(WithMessagePrefix(""), std::string(5, '\0'));
  EXPECT_EQ(WithMessagePrefix("a"), std::string("\0\0\0\0\1a", 6));
  const std::string large(0x0102'03, 'x');
  EXPECT_EQ(WithMessagePrefix(large),
            std::string("\0\0\x01\x02\x03", 5) + large);
}

TEST(MessageReaderTest, CutsWhereverTheBytesAreSplit) {
  const std::vector<std::string> messages = {"", "a", std::string(kMax, 'b'),
                                             "", "the last"};
  std::string all;
  for (const std::string& message : messages) all += WithMessagePrefix(message);
  for (size_t part = 1; part <= all.size(); ++part) {
    MessageReader reader(kMax);
    std::vector<std::string> read;
    for (size_t at = 0; at < all.size(); at += part) {
      reader.Append(absl::string_view(all).substr(at, part));
      while (IsComplete(reader)) read.push_back(reader.Take());
    }
    EXPECT_EQ(read, messages) << part;
    EXPECT_EQ(reader.buffered(), 0u);
  }
}

TEST(MessageReaderTest, IsNotCompleteBeforeTheLastByte) {
  const std::string bytes = WithMessagePrefix("hello");
  for (size_t i = 0; i < bytes.size(); ++i) {
    MessageReader reader(kMax);
    reader.Append(absl::string_view(bytes).substr(0, i));
    EXPECT_FALSE(IsComplete(reader)) << i;
    EXPECT_EQ(reader.buffered(), i);
    EXPECT_EQ(reader.announced(), i < kMessagePrefixBytes ? 0 : bytes.size());
    reader.Append(absl::string_view(bytes).substr(i));
    EXPECT_TRUE(IsComplete(reader)) << i;
    EXPECT_EQ(reader.Take(), "hello");
    EXPECT_FALSE(IsComplete(reader));
    EXPECT_EQ(reader.announced(), 0u);
  }
}

TEST(MessageReaderTest, TakesNoMoreThanOneMessage) {
  MessageReader reader(kMax);
  reader.Append(WithMessagePrefix("one") + WithMessagePrefix("two") +
                std::string(1, '\0'));
  EXPECT_TRUE(IsComplete(reader));
  EXPECT_EQ(reader.Take(), "one");
  EXPECT_TRUE(IsComplete(reader));
  EXPECT_EQ(reader.Take(), "two");
  EXPECT_FALSE(IsComplete(reader));
}

TEST(MessageReaderTest, ALengthBeyondTheLimitIsRefusedBeforeItsBytesCome) {
  for (const uint32_t length : {uint32_t{kMax} + 1, uint32_t{1} << 24,
                                0x7fff'ffffu, 0x8000'0000u, 0xffff'ffffu}) {
    MessageReader reader(kMax);
    reader.Append(Prefix(length));
    bool complete = true;
    const absl::Status status = reader.Check(&complete);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << length;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::to_string(length)));
    EXPECT_FALSE(complete);
    EXPECT_EQ(reader.announced(), size_t{length} + kMessagePrefixBytes);
  }
  MessageReader reader(kMax);
  reader.Append(Prefix(kMax));
  EXPECT_FALSE(IsComplete(reader));
}

TEST(MessageReaderTest, ALimitOfZeroTakesEmptyMessages) {
  MessageReader reader(0);
  reader.Append(Prefix(0) + Prefix(1));
  EXPECT_TRUE(IsComplete(reader));
  EXPECT_EQ(reader.Take(), "");
  bool complete = true;
  EXPECT_EQ(reader.Check(&complete).code(),
            absl::StatusCode::kResourceExhausted);
}

// Known by the first byte already.
TEST(MessageReaderTest, ACompressedMessageIsRefused) {
  for (const char flag : {'\1', '\2', '\xff'}) {
    for (const size_t size : {1, 4, 5, 6}) {
      MessageReader reader(kMax);
      reader.Append(Prefix(1, flag).append("x").substr(0, size));
      bool complete = true;
      const absl::Status status = reader.Check(&complete);
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
      EXPECT_FALSE(complete);
    }
  }
  // Behind one that is not.
  MessageReader reader(kMax);
  reader.Append(WithMessagePrefix("x") + Prefix(1, '\1'));
  EXPECT_TRUE(IsComplete(reader));
  EXPECT_EQ(reader.Take(), "x");
  bool complete = true;
  EXPECT_EQ(reader.Check(&complete).code(), absl::StatusCode::kInternal);
}

TEST(MessageReaderTest, ClearForgetsWhatCame) {
  MessageReader reader(kMax);
  reader.Append(Prefix(0xffff'ffff));
  reader.Clear();
  EXPECT_EQ(reader.buffered(), 0u);
  EXPECT_FALSE(IsComplete(reader));
  reader.Append(WithMessagePrefix("x"));
  EXPECT_TRUE(IsComplete(reader));
  EXPECT_EQ(reader.Take(), "x");
}

}  // namespace
}  // namespace recurve
