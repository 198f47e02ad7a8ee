// Damaged and hostile bytes for the reader of exported states.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/states/state_wire.h"
#include "tests/server/state_testing.h"

namespace recurve {
namespace {

using ::testing::HasSubstr;

void FlipBit(size_t bit, std::string* bytes) {
  char& byte = (*bytes)[bit / 8];
  byte = static_cast<char>(byte ^ (1 << bit % 8));
}

// Whether the reader refuses the bytes, as damaged except where they seem to be
// of another format or version.
void ExpectRefused(absl::string_view bytes, size_t bit) {
  TestImport import;
  const absl::Status status = import.Pass(bytes);
  EXPECT_FALSE(status.ok()) << "bit " << bit;
  if (bit / 8 >= 16) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss)
        << "bit " << bit << ": " << status;
  }
  EXPECT_LE(import.num_sunk(), 2);
}

TEST(StateDamageTest, RefusesEverySingleBitFlip) {
  for (const int64_t block_bytes : {1, 64, 65}) {
    std::string bytes = ExportState(MakeTestState(2, block_bytes));
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      FlipBit(bit, &bytes);
      ExpectRefused(bytes, bit);
      FlipBit(bit, &bytes);
    }
    EXPECT_TRUE(TestImport().Pass(bytes).ok());
  }
}

TEST(StateDamageTest, RefusesRandomBitFlipsOfALargerState) {
  std::string bytes = ExportState(MakeTestState(9, 20000));
  TestRandom random(5);
  for (int round = 0; round < 1000; ++round) {
    const auto bit = static_cast<size_t>(
        random.Uniform(0, static_cast<int64_t>(8 * bytes.size()) - 1));
    FlipBit(bit, &bytes);
    TestImport import;
    EXPECT_FALSE(
        import.Pass(bytes, [&] { return random.Uniform(1, 100000); }).ok());
    FlipBit(bit, &bytes);
  }
}

TEST(StateDamageTest, RefusesEveryTruncation) {
  for (const int64_t num_blocks : {0, 2}) {
    const std::string bytes = ExportState(MakeTestState(num_blocks, 65));
    for (size_t size = 0; size < bytes.size(); ++size) {
      const absl::Status status =
          TestImport().Pass(absl::string_view(bytes).substr(0, size));
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    }
  }
}

TEST(StateDamageTest, RefusesAppendedBytes) {
  const std::string bytes = ExportState(MakeTestState(2, 65));
  for (const std::string& more :
       {std::string(1, '\0'), std::string(64, '\0'), bytes}) {
    EXPECT_EQ(TestImport().Pass(bytes + more).code(),
              absl::StatusCode::kDataLoss);
    TestImport in_two;
    ASSERT_TRUE(in_two.Pass(bytes).ok());
    EXPECT_EQ(in_two.Pass(more).code(), absl::StatusCode::kDataLoss);
  }
}

// Blocks that are whole, but not in their places.
TEST(StateDamageTest, RefusesBlocksOutOfOrder) {
  const std::string bytes = ExportState(MakeTestState(3, 64));
  const size_t first = bytes.size() - 64 - 3 * 128;
  const auto block = [&](size_t i) {
    return bytes.substr(first + i * 128, 128);
  };
  const std::string swapped =
      absl::StrCat(bytes.substr(0, first), block(1), block(0), block(2),
                   bytes.substr(bytes.size() - 64));
  EXPECT_EQ(TestImport().Pass(swapped).code(), absl::StatusCode::kDataLoss);
  // The blocks of another state in this one's frame: only the trailer tells.
  const std::string other = ExportState(MakeTestState(3, 64, 2));
  const std::string mixed =
      absl::StrCat(bytes.substr(0, first), other.substr(first, 3 * 128),
                   bytes.substr(bytes.size() - 64));
  EXPECT_THAT(std::string(TestImport().Pass(mixed).message()),
              HasSubstr("its trailer: its checksum is "));
}

absl::Status PassHeader(absl::string_view serialized) {
  TestImport import;
  const absl::Status status = import.Pass(HeadOf(serialized));
  EXPECT_EQ(import.num_sunk(), 0);
  return status;
}

absl::Status PassHeader(const v1::StateHeader& header) {
  return PassHeader(header.SerializeAsString());
}

TEST(HostileHeaderTest, RefusesLengthsBeyondTheLimit) {
  for (const uint32_t length : {(uint32_t{64} << 20) + 1, 0xffffffffu}) {
    std::string bytes(kStateMagic);
    AppendLittleEndian<uint32_t>(kStateVersion, &bytes);
    AppendLittleEndian<uint32_t>(length, &bytes);
    EXPECT_EQ(TestImport().Pass(bytes),
              absl::InvalidArgumentError(
                  absl::StrCat("the state's header has ", length,
                               " bytes; at most 67108864 are allowed")));
  }
}

TEST(HostileHeaderTest, RefusesSizesThatDisagree) {
  v1::StateHeader header = MakeTestHeader(1, 64);
  header.clear_fingerprint();
  EXPECT_EQ(PassHeader(header).message(),
            "the state's header has no fingerprint");
  EXPECT_EQ(PassHeader("").message(), "the state's header has no fingerprint");

  header = MakeTestHeader(1, 64);
  header.set_token_kinds("ab");
  EXPECT_EQ(PassHeader(header).message(),
            "the state's token_kinds are 2 for 3 token_ids");

  header = MakeTestHeader(1, 64);
  header.set_computed_tokens(4);
  EXPECT_EQ(PassHeader(header).message(),
            "the state's computed_tokens is 4; at most 3 is allowed");
  header.set_computed_tokens(3);
  EXPECT_EQ(PassHeader(header).code(), absl::StatusCode::kDataLoss);

  header = MakeTestHeader(1, 0);
  EXPECT_EQ(PassHeader(header).code(), absl::StatusCode::kInvalidArgument);

  header.mutable_fingerprint()->set_model(std::string(5000, 'x'));
  EXPECT_THAT(std::string(PassHeader(header).message()),
              HasSubstr("at most 4096 is allowed"));
}

TEST(HostileHeaderTest, RefusesHugeBlocksBeforeTheOwnerIsAsked) {
  const uint64_t most_blocks = uint64_t{1} << 28;
  const uint64_t most_bytes = uint64_t{1} << 34;
  for (const uint64_t huge : {most_blocks + 1, ~uint64_t{0}}) {
    v1::StateHeader header = MakeTestHeader(1, 64);
    header.set_num_blocks(huge);
    EXPECT_EQ(PassHeader(header).code(), absl::StatusCode::kInvalidArgument);
  }
  for (const uint64_t huge : {most_bytes + 1, uint64_t{1} << 63}) {
    v1::StateHeader header = MakeTestHeader(1, 64);
    header.mutable_fingerprint()->set_block_bytes(huge);
    EXPECT_EQ(PassHeader(header).code(), absl::StatusCode::kInvalidArgument);
  }
  // At the limits it is for the owner to refuse, and no sum overflows.
  v1::StateHeader header = MakeTestHeader(1, 64);
  header.set_num_blocks(most_blocks);
  header.mutable_fingerprint()->set_block_bytes(most_bytes);
  EXPECT_EQ(PassHeader(header).message(), "no room for the state");
  const auto writer = StateWriter::Make(header, nullptr);
  ASSERT_TRUE(writer.ok());
  EXPECT_GT(writer->total_bytes(), int64_t{1} << 62);
}

TEST(HostileHeaderTest, RefusesWhatIsNoHeader) {
  const std::string good = MakeTestHeader(1, 64).SerializeAsString();
  const auto invalid = absl::InvalidArgumentError(
      "the state's header is not a recurve.v1.StateHeader");
  EXPECT_EQ(PassHeader(good.substr(0, good.size() - 1)), invalid);
  EXPECT_EQ(PassHeader(good + std::string(1, '\0')), invalid);
  // A fingerprint and a name longer than the header; a name that is not UTF-8.
  EXPECT_EQ(PassHeader("\x0a\x7f"
                       "a"),
            invalid);
  EXPECT_EQ(PassHeader("\x3a\xff\xff\xff\xff\x07"), invalid);
  EXPECT_EQ(PassHeader(good + "\x3a\x01\xff"), invalid);
}

// Protobuf would keep them in up to ten times their size; and what they decide
// would be lost.
TEST(HostileHeaderTest, RefusesFieldsThatItDoesNotKnow) {
  const std::string good = MakeTestHeader(1, 64).SerializeAsString();
  for (const std::string& field :
       {std::string("\x48\x01", 2),       // number 9
        std::string("\x0b\x0c", 2),       // a group for the fingerprint
        std::string("\x22\x00", 2),       // bytes for computed_tokens
        std::string("\x0a\x02\x60\x01"),  // number 12 of the fingerprint
        std::string("\x0c")}) {           // the end of no group
    EXPECT_EQ(PassHeader(good + field).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(PassHeader(good + "\x48\x01").message(),
            "the state's header has a field of number 9 and wire type 0 in "
            "StateHeader, which this server does not know");
  // A tag for each element of a repeated field is another valid form.
  const std::string more_tokens =
      absl::StrCat(good, "\x10\x05", "\x1a\x04", std::string(4, '\1'));
  EXPECT_EQ(PassHeader(more_tokens).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace recurve
