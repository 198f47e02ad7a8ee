#include "kernels/embedding/embedding.h"

#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr int64_t kVocab = 11;

// Row t of `y` must be row tokens[t] of `values`, and nothing else be written.
void ExpectRows(const TensorView& table, const std::vector<float>& values,
                ThreadPool& pool) {
  const int64_t cols = table.shape[1];
  const int64_t stride = cols + 3;
  const std::vector<int32_t> tokens = {10, 0, 3, 3, 7, 10};
  std::vector<float> y(tokens.size() * stride, kCanary);
  std::vector<float> want = y;
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int64_t c = 0; c < cols; ++c) {
      want[t * stride + c] = 0.5f * values[tokens[t] * cols + c];
    }
  }
  Embedding({&table, tokens.data(), y.data(), stride,
             static_cast<int64_t>(tokens.size()), 0.5f},
            pool);
  EXPECT_TRUE(SameBits(y, want));
}

TEST(EmbeddingTest, CopiesFloat32Rows) {
  for (int64_t cols : {1, 5, 64}) {
    const std::vector<float> values = RandomTensor(1, kVocab * cols);
    const TensorView table = {values.data(), DType::kFloat32, {kVocab, cols}};
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      ExpectRows(table, values, pool);
    }
  }
}

TEST(EmbeddingTest, ReadsRowsOfAPackedMatrix) {
  constexpr int64_t kRows = 37;  // three blocks of rows
  constexpr int64_t kCols = 5;
  const std::vector<float> values = RandomBFloat16Tensor(3, kRows * kCols);
  const TensorView table = {values.data(), DType::kFloat32, {kRows, kCols}};
  const std::vector<int32_t> tokens = {0, 36, 15, 16, 17, 31, 32};
  ThreadPool pool(2);
  for (DType type : {DType::kFloat32, DType::kBFloat16}) {
    const auto packed = PackedMatrix::Pack({table}, type);
    ASSERT_TRUE(packed.ok()) << packed.status();
    std::vector<float> got(tokens.size() * kCols), want(got.size());
    const auto rows = static_cast<int64_t>(tokens.size());
    Embedding({&table, tokens.data(), want.data(), kCols, rows, 0.5f}, pool);
    Embedding({nullptr, tokens.data(), got.data(), kCols, rows, 0.5f, &*packed},
              pool);
    EXPECT_TRUE(SameBits(got, want));
  }
}

TEST(EmbeddingTest, WidensBFloat16FromAnyAddress) {
  ThreadPool pool(2);
  for (int64_t cols : {1, 5, 64}) {
    const std::vector<float> values = RandomBFloat16Tensor(2, kVocab * cols);
    std::vector<char> bytes(1 + values.size() * 2);  // at an odd address
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = FloatToBFloat16(values[i]);
      std::memcpy(bytes.data() + 1 + i * 2, &bits, 2);
    }
    const TensorView table = {
        bytes.data() + 1, DType::kBFloat16, {kVocab, cols}};
    ExpectRows(table, values, pool);
  }
}

TEST(EmbeddingTest, NoRows) {
  ThreadPool pool(2);
  const std::vector<float> values = RandomTensor(1, kVocab);
  const TensorView table = {values.data(), DType::kFloat32, {kVocab, 1}};
  float out = -1;
  Embedding({&table, nullptr, &out, 1, 0, 1.0f}, pool);
  EXPECT_EQ(out, -1);
}

}  // namespace
}  // namespace recurve
