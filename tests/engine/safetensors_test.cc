#include "engine/checkpoint/safetensors.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/check_finite.h"
#include "engine/checkpoint/mapped_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A valid file of 24 payload bytes: f32 [2,2], an odd bf16 [3] behind it, an
// empty f16 and a scalar int32 at an unaligned place.
constexpr char kHeader[] =
    R"({"__metadata__":{"format":"pt"},)"
    R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
    R"("none":{"dtype":"F16","shape":[0,7],"data_offsets":[22,22]},)"
    R"("n":{"dtype":"I32","shape":[],"data_offsets":[22,26]}})";

std::string Payload() {
  const float a[] = {1.0f, -2.0f, 0.5f, 3.0f};
  const uint16_t b[] = {0x3f80, 0xc000, 0x4040};
  const int32_t n = -7;
  std::string payload(26, '\0');
  std::memcpy(&payload[0], a, 16);
  std::memcpy(&payload[16], b, 6);
  std::memcpy(&payload[22], &n, 4);
  return payload;
}

class SafetensorsTest : public testing::Test {
 protected:
  absl::Status OpenBytes(absl::string_view bytes) {
    return SafetensorsFile::Open(folder_.Write("x.safetensors", bytes))
        .status();
  }
  // The error of a file with this header and as many bytes of payload.
  absl::Status OpenHeader(absl::string_view header, size_t payload_bytes = 0) {
    return OpenBytes(
        SafetensorsBytes(header, std::string(payload_bytes, '\0')));
  }
  // As OpenHeader, for one tensor "w".
  absl::Status OpenTensor(absl::string_view entry, size_t payload_bytes) {
    return OpenHeader(absl::StrCat(R"({"w":)", entry, "}"), payload_bytes);
  }

  TempFolder folder_;
};

TEST_F(SafetensorsTest, ReadsTensors) {
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(
      folder_.Write("x.safetensors", SafetensorsBytes(kHeader, Payload())));
  ASSERT_TRUE(opened.ok()) << opened.status();
  // Views stay good when the file object moves.
  const SafetensorsFile file = std::move(*opened);
  ASSERT_EQ(file.tensors().size(), 4u);
  const TensorView& a = file.tensors().at("a");
  EXPECT_EQ(a.dtype, DType::kFloat32);
  EXPECT_THAT(a.shape, ElementsAre(2, 2));
  EXPECT_THAT(Floats(a), ElementsAre(1.0f, -2.0f, 0.5f, 3.0f));
  EXPECT_THAT(Floats(file.tensors().at("b")), ElementsAre(1.0f, -2.0f, 3.0f));
  EXPECT_TRUE(Floats(file.tensors().at("none")).empty());
  const TensorView& n = file.tensors().at("n");
  EXPECT_EQ(n.dtype, DType::kInt32);
  EXPECT_TRUE(n.shape.empty());
  int32_t value = 0;
  std::memcpy(&value, n.data, sizeof(value));
  EXPECT_EQ(value, -7);
}

TEST_F(SafetensorsTest, AcceptsAFileWithoutTensorsAndPaddedHeaders) {
  EXPECT_TRUE(OpenHeader("{}").ok());
  EXPECT_TRUE(OpenHeader("{}      ").ok());
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_THAT(
      SafetensorsFile::Open(folder_.path() + "/absent").status(),
      FailsWith(absl::StatusCode::kNotFound, "/absent", "No such file"));
  EXPECT_THAT(SafetensorsFile::Open(folder_.path()).status(),
              FailsWith(kInvalid, folder_.path(), "not a regular file"));
  EXPECT_THAT(OpenBytes(""), FailsWith(kInvalid, "x.safetensors", "empty"));
  // Must not wait for someone to write into it.
  const std::string fifo = folder_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(fifo).status(),
              FailsWith(kInvalid, "not a regular file"));
}

TEST_F(SafetensorsTest, RefusesBadHeaderLengths) {
  EXPECT_THAT(
      OpenBytes("1234567"),
      FailsWith(kInvalid, "x.safetensors: 7 bytes", "expected at least 8"));
  EXPECT_THAT(OpenBytes(HeaderLength(0)),
              FailsWith(kInvalid, "header begins with ''"));
  EXPECT_THAT(OpenBytes(HeaderLength(3) + "{}"),
              FailsWith(kInvalid, "header length is 3; expected at most 2"));
  EXPECT_THAT(
      OpenBytes(HeaderLength(std::numeric_limits<uint64_t>::max()) + "{}"),
      FailsWith(kInvalid, "header length is 18446744073709551615"));
}

TEST_F(SafetensorsTest, RefusesHeadersOfMoreThanAHundredMegabytes) {
  // Sparse: only the length is written.
  const std::string path =
      folder_.Write("x.safetensors", HeaderLength(100'000'001));
  std::filesystem::resize_file(path, 100'000'100);
  EXPECT_THAT(
      SafetensorsFile::Open(path).status(),
      FailsWith(kInvalid, "header length is 100000001", "at most 100000000"));
}

TEST_F(SafetensorsTest, RefusesHeadersThatAreNoJsonObject) {
  EXPECT_THAT(OpenHeader("[]"), FailsWith(kInvalid, "'['", "expected '{'"));
  EXPECT_THAT(OpenHeader(" {}"), FailsWith(kInvalid, "expected '{'"));
  EXPECT_THAT(OpenHeader("{"), FailsWith(kInvalid, "not valid JSON at byte"));
  EXPECT_THAT(OpenHeader("{},"), FailsWith(kInvalid, "not valid JSON"));
  EXPECT_THAT(OpenHeader(absl::string_view("{}\0{", 4)),
              FailsWith(kInvalid, "NUL at byte 3"));
  EXPECT_THAT(OpenHeader("{\"\xff\":1}"),
              FailsWith(kInvalid, "not valid JSON"));
  EXPECT_THAT(OpenHeader("{\"\xed\xa0\x80\":1}"),
              FailsWith(kInvalid, "not valid JSON"));
  EXPECT_THAT(OpenHeader(R"({"a":1e999})"), FailsWith(kInvalid, "JSON"));
}

TEST_F(SafetensorsTest, RefusesDeepNesting) {
  EXPECT_THAT(OpenHeader(R"({"w":{"shape":[[[1]]]}})"),
              FailsWith(kInvalid, "nested deeper than 4"));
  // Deep enough to end a parser that recurses.
  EXPECT_THAT(OpenHeader(R"({"w":)" + std::string(1'000'000, '[')),
              FailsWith(kInvalid, "nested deeper than 4"));
}

TEST_F(SafetensorsTest, RefusesRepeatedKeys) {
  constexpr char kEntry[] =
      R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(
      OpenHeader(absl::StrCat(R"({"w":)", kEntry, R"(,"w":)", kEntry, "}"), 4),
      FailsWith(kInvalid, "x.safetensors", "'w' more than once"));
  EXPECT_THAT(
      OpenTensor(
          R"({"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]})",
          4),
      FailsWith(kInvalid, "w has the key 'dtype' more than once"));
}

TEST_F(SafetensorsTest, RefusesMetadataThatIsNotStrings) {
  EXPECT_THAT(OpenHeader(R"({"__metadata__":{"a":1}})"),
              FailsWith(kInvalid, "__metadata__ 'a' is 1", "a string"));
  EXPECT_THAT(OpenHeader(R"({"__metadata__":"pt"})"),
              FailsWith(kInvalid, "__metadata__ is 'pt'", "an object"));
}

TEST_F(SafetensorsTest, RefusesBadTensorEntries) {
  EXPECT_THAT(OpenTensor("7", 0), FailsWith(kInvalid, "tensor 'w'", "is 7"));
  EXPECT_THAT(OpenTensor(R"({"shape":[1],"data_offsets":[0,4]})", 4),
              FailsWith(kInvalid, "tensor 'w'", "dtype is missing"));
  EXPECT_THAT(OpenTensor(R"({"dtype":"F32","data_offsets":[0,4]})", 4),
              FailsWith(kInvalid, "shape is missing"));
  EXPECT_THAT(OpenTensor(R"({"dtype":"F32","shape":[1]})", 4),
              FailsWith(kInvalid, "data_offsets is missing"));
  EXPECT_THAT(
      OpenTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":0})",
                 4),
      FailsWith(kInvalid, "unknown key 'x'"));
}

// A model may not need them.
TEST_F(SafetensorsTest, KeepsTensorsAsideThatCannotBeRead) {
  for (const auto& [dtype, bytes] : std::vector<std::pair<std::string, int>>{
           {"F64", 8}, {"I64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"U16", 2}}) {
    const std::string header = absl::StrCat(
        R"({"w":{"dtype":")", dtype, R"(","shape":[3],"data_offsets":[0,)",
        3 * bytes, R"(]},"x":{"dtype":"F32","shape":[],"data_offsets":[)",
        3 * bytes, ",", 3 * bytes + 4, "]}}");
    const absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(folder_.Write(
            "x.safetensors",
            SafetensorsBytes(header, std::string(3 * bytes + 4, 'a'))));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tensors().size(), 1u);
    ASSERT_EQ(file->others().size(), 1u);
    EXPECT_EQ(file->others().at("w").type, dtype);
    EXPECT_EQ(file->others().at("w").bytes, 3 * bytes);
    EXPECT_THAT(
        OpenTensor(absl::StrCat(R"({"dtype":")", dtype,
                                R"(","shape":[1],"data_offsets":[0,)",
                                bytes + 1, "]}"),
                   bytes + 1),
        FailsWith(kInvalid, absl::StrCat("of ", dtype, " needs ", bytes)));
  }
}

TEST_F(SafetensorsTest, RefusesOtherDTypes) {
  for (const char* dtype : {"F4", "F6_E2M3", "f32", ""}) {
    const absl::Status status =
        OpenTensor(absl::StrCat(R"({"dtype":")", dtype,
                                R"(","shape":[1],"data_offsets":[0,8]})"),
                   8);
    EXPECT_THAT(status, FailsWith(kInvalid, "x.safetensors", "tensor 'w'",
                                  absl::StrCat("dtype is '", dtype, "'")));
    // No tensor of a model may be I32, though such a file opens.
    EXPECT_THAT(std::string(status.message()),
                testing::EndsWith("; supported: F32, F16, BF16"));
  }
  EXPECT_THAT(OpenTensor(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})", 4),
              FailsWith(kInvalid, "dtype is 4"));
}

TEST_F(SafetensorsTest, RefusesBadShapes) {
  const auto open = [&](absl::string_view shape) {
    return OpenTensor(absl::StrCat(R"({"dtype":"F32","shape":)", shape,
                                   R"(,"data_offsets":[0,4]})"),
                      4);
  };
  EXPECT_TRUE(open("[1]").ok());
  EXPECT_TRUE(open("[1,1,1,1,1,1,1,1]").ok());
  EXPECT_THAT(open("[1,1,1,1,1,1,1,1,1]"),
              FailsWith(kInvalid, "a list of 9", "at most 8"));
  EXPECT_THAT(open("1"), FailsWith(kInvalid, "tensor 'w'", "shape is 1"));
  EXPECT_THAT(open("{}"), FailsWith(kInvalid, "shape is an object"));
  EXPECT_THAT(open("[-1]"), FailsWith(kInvalid, "shape[0] is -1"));
  EXPECT_THAT(open("[1,1.0]"), FailsWith(kInvalid, "shape[1] is 1.0"));
  EXPECT_THAT(open("[\"1\"]"), FailsWith(kInvalid, "shape[0] is '1'"));
  EXPECT_THAT(open("[null]"), FailsWith(kInvalid, "shape[0] is null"));
  EXPECT_THAT(open("[true]"), FailsWith(kInvalid, "shape[0] is true"));
  EXPECT_THAT(open("[2]"), FailsWith(kInvalid, "span 4 bytes", "needs 8"));
  EXPECT_THAT(open("[0]"), FailsWith(kInvalid, "span 4 bytes", "needs 0"));
}

TEST_F(SafetensorsTest, RefusesShapesThatOverflow) {
  const auto open = [&](absl::string_view shape) {
    return OpenTensor(absl::StrCat(R"({"dtype":"F32","shape":)", shape,
                                   R"(,"data_offsets":[0,4]})"),
                      4);
  };
  // 2^64 + 1 and 2^63 fit no dimension; the products wrap to 4 and 0 bytes.
  EXPECT_THAT(open("[18446744073709551617]"), FailsWith(kInvalid, "shape[0]"));
  EXPECT_THAT(open("[9223372036854775808]"), FailsWith(kInvalid, "shape[0]"));
  EXPECT_THAT(open("[4611686018427387905]"), FailsWith(kInvalid, "64 bits"));
  EXPECT_THAT(open("[4294967296,4294967296]"), FailsWith(kInvalid, "64 bits"));
  // Empty, but a product of its first dimensions would overflow.
  EXPECT_THAT(open("[4294967296,4294967296,0]"),
              FailsWith(kInvalid, "64 bits"));
  EXPECT_THAT(open("[0,4294967296,4294967296]"),
              FailsWith(kInvalid, "64 bits"));
}

TEST_F(SafetensorsTest, RefusesBadOffsets) {
  const auto open = [&](absl::string_view offsets) {
    return OpenTensor(absl::StrCat(R"({"dtype":"F32","shape":[1],)",
                                   R"("data_offsets":)", offsets, "}"),
                      4);
  };
  EXPECT_TRUE(open("[0,4]").ok());
  for (const char* offsets : {"4", "[0]", "[0,4,4]", "[-4,0]", "[0,4.0]",
                              "[null,4]", "[0,18446744073709551620]"}) {
    EXPECT_THAT(open(offsets), FailsWith(kInvalid, "tensor 'w'", "data_offsets",
                                         "two integers of at least 0"))
        << offsets;
  }
  EXPECT_THAT(open("[4,0]"), FailsWith(kInvalid, "[4,0]", "begin <= end <= 4"));
  EXPECT_THAT(open("[0,8]"), FailsWith(kInvalid, "begin <= end <= 4"));
  EXPECT_THAT(open("[9223372036854775804,9223372036854775807]"),
              FailsWith(kInvalid, "begin <= end <= 4"));
  EXPECT_THAT(open("[1,4]"), FailsWith(kInvalid, "span 3 bytes", "needs 4"));
}

TEST_F(SafetensorsTest, RefusesHolesOverlapsAndRests) {
  const auto open = [&](int a_begin, int b_begin, size_t payload_bytes) {
    const auto entry = [](int begin) {
      return absl::StrCat(R"({"dtype":"F16","shape":[2],"data_offsets":[)",
                          begin, ",", begin + 4, "]}");
    };
    return OpenHeader(absl::StrCat(R"({"a":)", entry(a_begin), R"(,"b":)",
                                   entry(b_begin), "}"),
                      payload_bytes);
  };
  EXPECT_TRUE(open(0, 4, 8).ok());
  EXPECT_TRUE(open(4, 0, 8).ok());  // any order in the header
  EXPECT_THAT(open(0, 5, 9), FailsWith(kInvalid, "tensor 'b'", "hole"));
  EXPECT_THAT(open(5, 1, 9), FailsWith(kInvalid, "tensor 'b'", "hole"));
  EXPECT_THAT(open(0, 3, 7), FailsWith(kInvalid, "tensor 'b'", "overlaps"));
  EXPECT_THAT(open(0, 0, 4), FailsWith(kInvalid, "overlaps"));
  EXPECT_THAT(open(0, 4, 9),
              FailsWith(kInvalid, "x.safetensors: 1 bytes after"));
  EXPECT_THAT(OpenHeader("{}", 3), FailsWith(kInvalid, "3 bytes after"));
}

TEST_F(SafetensorsTest, MessagesStayShortAndPrintable) {
  const std::string name(1'000'000, 'x');
  const absl::Status status =
      OpenHeader(absl::StrCat("{\"\\u0007", name, "\":1}"));
  EXPECT_THAT(status, FailsWith(kInvalid, "\\x07xxx", "(1000001 bytes)"));
  EXPECT_LT(status.message().size(), 1000u);
  const absl::Status garbage =
      OpenHeader(absl::StrCat("{\"", name, "\xff", name));
  EXPECT_LT(garbage.message().size(), 1000u);
}

// Never a crash, and an error always names the file.
TEST_F(SafetensorsTest, SurvivesMutation) {
  const std::string valid = SafetensorsBytes(kHeader, Payload());
  std::mt19937 random(20240607);
  // What header fields are made of, to get past the parser more often.
  constexpr absl::string_view kAlphabet("0123456789-.,:[]{}\"eFBI\\ \x00\xff",
                                        27);
  int accepted = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string bytes = valid;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < edits && !bytes.empty(); ++e) {
      const size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 1:
          bytes[at] = kAlphabet[random() % kAlphabet.size()];
          break;
        case 2:
          bytes.insert(at, 1, kAlphabet[random() % kAlphabet.size()]);
          break;
        case 3:
          bytes.erase(at, 1 + random() % 3);
          break;
        default:
          if (random() % 8 == 0) bytes.resize(at);
          break;
      }
    }
    absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(folder_.Write("x.safetensors", bytes));
    if (!file.ok()) {
      EXPECT_THAT(std::string(file.status().message()),
                  HasSubstr("x.safetensors"));
      continue;
    }
    ++accepted;
    // Everything that was accepted can be read.
    for (const auto& item : file->tensors()) {
      if (item.second.dtype == DType::kInt32) continue;
      EXPECT_EQ(static_cast<int64_t>(Floats(item.second).size()),
                item.second.num_elements());
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 5000);
}

TEST(CheckFiniteTest, ReadsUnalignedData) {
  const float values[] = {1.5f, -0.0f, -std::numeric_limits<float>::infinity()};
  std::string bytes(13, '\0');
  std::memcpy(&bytes[1], values, 12);
  EXPECT_THAT(CheckFinite({bytes.data() + 1, DType::kFloat32, {3}}, "w", "f"),
              FailsWith(kInvalid, "[2] is -inf"));
  const uint16_t half[] = {0x3c00, 0x7c00};
  std::memcpy(&bytes[1], half, 4);
  EXPECT_THAT(CheckFinite({bytes.data() + 1, DType::kFloat16, {2}}, "w", "f"),
              FailsWith(kInvalid, "[1] is inf"));
}

TEST(CheckFiniteTest, NamesTheFirstBadElement) {
  std::vector<float> values(3 * 5000, 1.0f);
  const TensorView view{values.data(), DType::kFloat32, {3, 5000}};
  EXPECT_TRUE(CheckFinite(view, "w", "f").ok());
  values.back() = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(CheckFinite(view, "w", "f"),
              FailsWith(kInvalid, "f: tensor 'w'", "[2, 4999] is -inf"));
  values[5001] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(CheckFinite(view, "w", "f"),
              FailsWith(kInvalid, "[1, 1] is nan"));
  values[0] = std::numeric_limits<float>::max();
  EXPECT_THAT(CheckFinite(view, "w", "f"),
              FailsWith(kInvalid, "[1, 1] is nan"));

  uint16_t bits[] = {0x7bff, 0x7c00, 0x7f7f, 0x7f80};
  EXPECT_THAT(CheckFinite({bits, DType::kFloat16, {4}}, "h", "f"),
              FailsWith(kInvalid, "[1] is inf"));
  EXPECT_THAT(CheckFinite({bits, DType::kBFloat16, {4}}, "h", "f"),
              FailsWith(kInvalid, "[3] is inf"));
  EXPECT_TRUE(CheckFinite({bits, DType::kBFloat16, {3}}, "h", "f").ok());
  EXPECT_TRUE(CheckFinite({bits, DType::kInt32, {2}}, "h", "f").ok());
  EXPECT_TRUE(CheckFinite({nullptr, DType::kFloat32, {0, 4}}, "h", "f").ok());
}

// What is refused is what conversion makes an infinity of, bit for bit.
TEST(CheckFiniteTest, KnowsWhatATypeCannotHold) {
  const auto check = [](DType dtype, float value) {
    return CheckFiniteAs(dtype, {&value, DType::kFloat32, {1, 1}}, "w", "f");
  };
  EXPECT_THAT(check(DType::kFloat16, -65520.0f),
              FailsWith(kInvalid, "f: tensor 'w': element [0, 0] is -65520",
                        "finite as float16"));
  EXPECT_THAT(check(DType::kFloat16, std::numeric_limits<float>::infinity()),
              FailsWith(kInvalid, "is inf; expected finite numbers"));
  for (const float about : {65504.0f, 65520.0f, 3.3961775e38f, 3.4e38f, 1.0f,
                            std::numeric_limits<float>::max()}) {
    for (int32_t off = -3; off <= 3; ++off) {
      const auto value = std::bit_cast<float>(std::bit_cast<uint32_t>(about) +
                                              static_cast<uint32_t>(off));
      SCOPED_TRACE(testing::Message() << std::hexfloat << value);
      EXPECT_EQ(check(DType::kFloat16, value).ok(),
                std::isfinite(Float16ToFloat(FloatToFloat16(value))));
      EXPECT_EQ(check(DType::kBFloat16, value).ok(),
                std::isfinite(BFloat16ToFloat(FloatToBFloat16(value))));
      EXPECT_EQ(check(DType::kFloat32, value).ok(), std::isfinite(value));
    }
  }
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const auto narrow = [&](DType stored, DType dtype) {
      return CheckFiniteAs(dtype, {&bits, stored, {1}}, "w", "f").ok();
    };
    const float value = BFloat16ToFloat(bits);
    ASSERT_EQ(narrow(DType::kBFloat16, DType::kFloat16),
              std::isfinite(Float16ToFloat(FloatToFloat16(value))))
        << value;
    ASSERT_EQ(narrow(DType::kBFloat16, DType::kFloat32), std::isfinite(value));
    ASSERT_EQ(narrow(DType::kFloat16, DType::kBFloat16),
              std::isfinite(Float16ToFloat(bits)));
  }
}

}  // namespace
}  // namespace recurve
