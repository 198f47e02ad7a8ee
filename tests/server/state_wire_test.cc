#include "server/states/state_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <string>

#include "tests/server/state_testing.h"

namespace recurve {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(StateWireTest, PassesStatesOfAllSizesInAllPieces) {
  TestRandom random(3);
  for (const int64_t block_bytes : {1, 63, 64, 65, 1000}) {
    for (const int64_t num_blocks : {0, 1, 2, 17}) {
      const TestState state = MakeTestState(num_blocks, block_bytes);
      const std::string bytes = ExportState(state);
      EXPECT_EQ(bytes.size() % 64, 0u);
      EXPECT_EQ(ExportState(state, 1), bytes);
      EXPECT_EQ(ExportState(state, 61), bytes);
      for (const int64_t longest : {1, 7, 200, 100000}) {
        TestImport import;
        const absl::Status status =
            import.Pass(bytes, [&] { return random.Uniform(1, longest); });
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(import.state().header.SerializeAsString(),
                  state.header.SerializeAsString());
        EXPECT_EQ(import.state().blocks, state.blocks);
      }
    }
  }
}

// What docs/state-format.md says, read without the library's own reader.
TEST(StateWireTest, HasTheDocumentedLayout) {
  const TestState state = MakeTestState(2, 65);
  const std::string header = state.header.SerializeAsString();
  const std::string bytes = ExportState(state);
  const size_t head_bytes = (16 + header.size() + 8 + 63) / 64 * 64;
  ASSERT_EQ(bytes.size(), head_bytes + 2 * (64 + 128) + 64);
  EXPECT_EQ(bytes.substr(0, 12), std::string("RCVSTATE\1\0\0\0", 12));
  EXPECT_EQ(bytes[12], static_cast<char>(header.size()));
  EXPECT_EQ(bytes.substr(16, header.size()), header);
  for (size_t i = 0; i < 2; ++i) {
    const std::string frame = bytes.substr(head_bytes + i * 192, 192);
    EXPECT_EQ(frame.substr(0, 8), std::string(1, char(i)) + std::string(7, 0));
    const uint64_t checksum = XXH3_64bits(state.blocks[i].data(), 65);
    EXPECT_EQ(ReadLittleEndian<uint64_t>(frame.substr(8)), checksum);
    EXPECT_EQ(frame.substr(16, 48), std::string(48, 0));
    EXPECT_EQ(frame.substr(64, 65), state.blocks[i]);
    EXPECT_EQ(frame.substr(129), std::string(63, 0));
  }
  const std::string trailer = bytes.substr(bytes.size() - 64);
  const XXH128_hash_t digest = XXH3_128bits(bytes.data(), bytes.size() - 64);
  EXPECT_EQ(ReadLittleEndian<uint64_t>(trailer), digest.low64);
  EXPECT_EQ(ReadLittleEndian<uint64_t>(trailer.substr(8)), digest.high64);
  EXPECT_EQ(trailer.substr(16), std::string(48, 0));
}

// A file of a version that was released must stay readable.
TEST(StateWireTest, GivesTheSameBytesAlways) {
  const std::string bytes = ExportState(MakeTestState(2, 65));
  EXPECT_EQ(StateChecksum(bytes), 551582752697511956u);
}

TEST(StateWireTest, WriterRefusesWhatNoReaderTakes) {
  v1::StateHeader header = MakeTestHeader(1, 0);
  const auto source = [](int64_t) { return absl::Span<const char>(); };
  EXPECT_EQ(StateWriter::Make(header, source).status().message(),
            "the state's fingerprint.block_bytes is 0, but it has 1 blocks");
  header = MakeTestHeader(0, 0);
  header.set_name(std::string(kMaxStateHeaderBytes, 'x'));
  EXPECT_THAT(Message(StateWriter::Make(header, source).status()),
              HasSubstr("bytes; at most 67108864 are allowed"));
}

TEST(StateWireTest, TakesHeadersUpToTheLimit) {
  const TestState state = MakeTestState(1, 8);
  const std::string bytes = ExportState(state);
  const auto size = static_cast<int64_t>(state.header.ByteSizeLong());
  EXPECT_TRUE(TestImport(size).Pass(bytes).ok());
  TestImport import(size - 1);
  EXPECT_EQ(import.Pass(bytes),
            absl::InvalidArgumentError(absl::StrCat("the state's header has ",
                                                    size, " bytes; at most ",
                                                    size - 1, " are allowed")));
}

TEST(StateWireTest, NamesTheDamagedBlock) {
  const TestState state = MakeTestState(17, 65);
  std::string bytes = ExportState(state);
  const size_t first = bytes.size() - 64 - 17 * 192;
  const size_t payload = first + 3 * 192 + 64;
  bytes[payload] = static_cast<char>(bytes[payload] ^ 1);
  std::string block = state.blocks[3];
  block[0] = static_cast<char>(block[0] ^ 1);
  EXPECT_EQ(TestImport().Pass(bytes),
            absl::DataLossError(absl::StrCat(
                "the state is damaged: block 3 of 17: its checksum is ",
                absl::Hex(StateChecksum(state.blocks[3]), absl::kZeroPad16),
                ", its bytes give ",
                absl::Hex(StateChecksum(block), absl::kZeroPad16))));

  bytes = ExportState(state);
  bytes[payload - 64] = 9;
  EXPECT_EQ(TestImport().Pass(bytes).message(),
            "the state is damaged: block 3 of 17: its frame has index 9");
  bytes = ExportState(state);
  bytes[payload + 127] = 9;
  EXPECT_EQ(TestImport().Pass(bytes).message(),
            "the state is damaged: block 3 of 17: byte 127 of it is 0x09, not "
            "zero");
  bytes = ExportState(state);
  bytes[payload - 48] = 9;
  EXPECT_EQ(
      TestImport().Pass(bytes).message(),
      "the state is damaged: the frame of block 3 of 17: byte 16 of it is "
      "0x09, not zero");
}

TEST(StateWireTest, NamesWhereTheBytesEnd) {
  const std::string bytes = ExportState(MakeTestState(17, 65));
  const size_t first = bytes.size() - 64 - 17 * 192;
  EXPECT_EQ(TestImport().Pass("RCVSTA").message(),
            "the state ends too early: in its head, after 6 bytes");
  EXPECT_EQ(TestImport().Pass(bytes.substr(0, first + 3 * 192 + 5)).message(),
            absl::StrCat("the state ends too early: in block 3 of 17, after ",
                         first + 3 * 192 + 5, " of ", bytes.size(), " bytes"));
  EXPECT_EQ(TestImport().Pass(bytes + "x").message(),
            absl::StrCat("bytes follow the state, which has ", bytes.size(),
                         " bytes"));
}

TEST(StateWireTest, NamesOtherFormatsAndVersions) {
  EXPECT_EQ(TestImport().Pass("PK\3\4 and then some more"),
            absl::InvalidArgumentError(
                "this is not a state: it begins with \"PK\\x03\\x04 and\", "
                "not with \"RCVSTATE\""));
  std::string bytes = ExportState(MakeTestState(1, 8));
  bytes[8] = 2;
  EXPECT_EQ(TestImport().Pass(bytes),
            absl::FailedPreconditionError(
                "the state is of version 2 of the format; this server reads "
                "version 1"));
}

TEST(StateWireTest, ReturnsTheOwnersErrorUnchanged) {
  const std::string bytes = ExportState(MakeTestState(2, 8));
  const absl::Status refusal = absl::ResourceExhaustedError("no room");
  StateReader reader(
      [&](const v1::StateHeader&) -> absl::StatusOr<StateReader::BlockSink> {
        return refusal;
      });
  EXPECT_EQ(reader.Append(bytes), refusal);
  EXPECT_EQ(reader.Append(bytes), refusal);
  EXPECT_EQ(reader.Finish(), refusal);
}

TEST(StateWireTest, HoldsNoMoreThanWhatHasArrived) {
  std::string bytes(kStateMagic);
  AppendLittleEndian<uint32_t>(kStateVersion, &bytes);
  AppendLittleEndian<uint32_t>(uint32_t{64} << 20, &bytes);
  bytes += std::string(1000, 'x');
  const auto held = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  TestImport import;
  const size_t before = held();
  ASSERT_TRUE(import.reader().Append(bytes).ok());
  EXPECT_LT(held(), before + (1 << 20));  // both 0 with a sanitizer
}

TEST(FingerprintTest, NamesTheFirstFieldThatDiffers) {
  v1::StateFingerprint ours = MakeTestHeader(1, 64).fingerprint();
  v1::StateFingerprint theirs = ours;
  EXPECT_TRUE(CheckFingerprint(theirs, ours).ok());
  theirs.set_page_bytes(1);
  ours.set_device("cuda 9.0");
  EXPECT_EQ(CheckFingerprint(theirs, ours),
            absl::FailedPreconditionError(
                "the state's fingerprint.device is \"cpu avx2\"; this "
                "server's is \"cuda 9.0\""));
  theirs.set_device("cuda 9.0");
  EXPECT_EQ(CheckFingerprint(theirs, ours).message(),
            "the state's fingerprint.page_bytes is 1; this server's is 0");
  theirs.set_model(std::string(100000, '\1'));
  EXPECT_LT(CheckFingerprint(theirs, ours).message().size(), 400u);
}

TEST(FingerprintTest, ComparesEveryField) {
  using Field = google::protobuf::FieldDescriptor;
  const auto& type = *v1::StateFingerprint::descriptor();
  ASSERT_GE(type.field_count(), 11);
  for (int i = 0; i < type.field_count(); ++i) {
    v1::StateFingerprint theirs;
    const Field* const field = type.field(i);
    const auto& reflection = *theirs.GetReflection();
    if (field->cpp_type() == Field::CPPTYPE_STRING) {
      reflection.SetString(&theirs, field, "x");
    } else if (field->cpp_type() == Field::CPPTYPE_UINT32) {
      reflection.SetUInt32(&theirs, field, 1);
    } else {
      reflection.SetUInt64(&theirs, field, 1);
    }
    const absl::Status status = CheckFingerprint(theirs, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(status),
                HasSubstr(absl::StrCat("fingerprint.", field->name(), " is ")));
  }
}

}  // namespace
}  // namespace recurve
