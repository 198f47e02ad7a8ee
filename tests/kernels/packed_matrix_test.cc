#include "kernels/matmul/packed_matrix.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

using ::testing::HasSubstr;

TensorView View(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), DType::kFloat32, {rows, cols}};
}

// Element [output, input] of the layout that the header states.
float At(const PackedMatrix& m, int64_t output, int64_t input) {
  const int64_t i = (output / 16 * m.inputs() + input) * 16 + output % 16;
  return m.storage() == DType::kFloat32 ? m.floats()[i]
                                        : BFloat16ToFloat(m.bfloats()[i]);
}

TEST(PackedMatrixTest, LayoutAndPadding) {
  for (DType storage : {DType::kFloat32, DType::kBFloat16}) {
    for (int64_t outputs : {1, 15, 16, 17, 63, 65}) {
      for (int64_t inputs : {1, 3, 32}) {
        const std::vector<float> values =
            RandomBFloat16Tensor(1, outputs * inputs);
        const auto packed =
            PackedMatrix::Pack({View(values, outputs, inputs)}, storage);
        ASSERT_TRUE(packed.ok()) << packed.status();
        EXPECT_EQ(packed->outputs(), outputs);
        EXPECT_EQ(packed->inputs(), inputs);
        const int64_t padded = (outputs + 15) / 16 * 16;
        EXPECT_EQ(packed->bytes(),
                  padded * inputs * (storage == DType::kFloat32 ? 4 : 2));
        for (int64_t o = 0; o < padded; ++o) {
          for (int64_t i = 0; i < inputs; ++i) {
            EXPECT_EQ(At(*packed, o, i),
                      o < outputs ? values[o * inputs + i] : 0.0f);
          }
        }
      }
    }
  }
}

TEST(PackedMatrixTest, PartsFollowEachOther) {
  const std::vector<float> a = RandomTensor(1, 3 * 5);
  const std::vector<float> b = RandomTensor(2, 20 * 5);
  const auto packed =
      PackedMatrix::Pack({View(a, 3, 5), View(b, 20, 5)}, DType::kFloat32);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->outputs(), 23);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(At(*packed, 2, i), a[10 + i]);
    EXPECT_EQ(At(*packed, 3, i), b[i]);
    EXPECT_EQ(At(*packed, 22, i), b[95 + i]);
  }
}

TEST(PackedMatrixTest, RowOrder) {
  const std::vector<float> a = RandomTensor(1, 3 * 5);
  const std::vector<float> b = RandomTensor(2, 2 * 5);
  const MatrixPart reordered(View(a, 3, 5), {2, 0, 1, -1});
  const auto packed = PackedMatrix::Pack({reordered, MatrixPart(View(b, 2, 5))},
                                         DType::kFloat32);
  ASSERT_TRUE(packed.ok());
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(At(*packed, 0, i), a[10 + i]);
    EXPECT_EQ(At(*packed, 1, i), a[i]);
    EXPECT_EQ(At(*packed, 2, i), a[5 + i]);
    EXPECT_EQ(At(*packed, 3, i), 0.0f);
    EXPECT_EQ(At(*packed, 4, i), b[i]);
  }
}

TEST(PackedMatrixTest, RefusesOrdersThatAreNone) {
  const std::vector<float> values(3 * 5);
  for (const std::vector<int32_t>& order : {std::vector<int32_t>{0, 1},
                                            {0, 1, 2, 3},
                                            {0, 1, 1},
                                            {0, 1, 3},
                                            {0, 1, -1},
                                            {0, 1, 2, -2}}) {
    const auto packed = PackedMatrix::Pack(
        {MatrixPart(View(values, 3, 5), order)}, DType::kFloat32);
    EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PackedMatrixTest, BFloat16RoundsWiderParts) {
  const std::vector<float> values = RandomTensor(1, 4 * 3);
  const auto packed =
      PackedMatrix::Pack({View(values, 4, 3)}, DType::kBFloat16);
  ASSERT_TRUE(packed.ok());
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(At(*packed, i / 3, i % 3),
              BFloat16ToFloat(FloatToBFloat16(values[i])));
  }
}

TEST(PackedMatrixTest, RefusesWhatItCannotPack) {
  const std::vector<float> values(64);
  const auto error = [](const absl::StatusOr<PackedMatrix>& packed) {
    EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(packed.status().message());
  };
  EXPECT_THAT(error(PackedMatrix::Pack({View(values, 4, 4)}, DType::kFloat16)),
              HasSubstr("float16"));
  EXPECT_THAT(error(PackedMatrix::Pack({View(values, 4, 4), View(values, 4, 5)},
                                       DType::kFloat32)),
              testing::AllOf(HasSubstr("[4, 5]"), HasSubstr("[rows, 4]")));
  const TensorView vector = {values.data(), DType::kFloat32, {64}};
  EXPECT_THAT(error(PackedMatrix::Pack({vector}, DType::kFloat32)),
              HasSubstr("[64]"));
  EXPECT_THAT(error(PackedMatrix::Pack({View(values, 0, 4)}, DType::kFloat32)),
              HasSubstr("[0, 4]"));
}

}  // namespace
}  // namespace recurve
