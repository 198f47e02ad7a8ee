#include "kernels/matmul/matmul.h"

#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/simd_test.h"

namespace recurve {
namespace {

PackedMatrix Packed(const std::vector<float>& w, int64_t outputs,
                    int64_t inputs, DType storage) {
  const TensorView view = {w.data(), DType::kFloat32, {outputs, inputs}};
  absl::StatusOr<PackedMatrix> packed = PackedMatrix::Pack({view}, storage);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

class MatmulTest : public SimdTest {
 protected:
  // The chain of additions that the header promises.
  static float Chain(const float* x, const float* w, int64_t inputs) {
    float sum = 0.0f;
    for (int64_t k = 0; k < inputs; ++k) {
      sum = HasFma() ? std::fma(x[k], w[k], sum) : x[k] * w[k] + sum;
    }
    return sum;
  }

  // [rows, outputs] inside rows of `stride`, gaps filled with canaries.
  static std::vector<float> Expected(const std::vector<float>& x,
                                     int64_t x_stride,
                                     const std::vector<float>& w,
                                     int64_t outputs, int64_t inputs,
                                     int64_t rows, int64_t y_stride) {
    std::vector<float> y(rows * y_stride, kCanary);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < outputs; ++n) {
        y[r * y_stride + n] =
            Chain(x.data() + r * x_stride, w.data() + n * inputs, inputs);
      }
    }
    return y;
  }

  // NaN in the gaps between rows of x: reading one would show.
  static std::vector<float> Inputs(int64_t rows, int64_t inputs,
                                   int64_t stride) {
    std::vector<float> x = RandomTensor(7, rows * stride);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = inputs; k < stride; ++k) x[r * stride + k] = kNaN;
    }
    return x;
  }
};

TEST_P(MatmulTest, EveryElementIsOneChainBitForBit) {
  ThreadPool pool(2);
  for (int64_t outputs : {1, 15, 16, 17, 63, 64, 65, 130}) {
    for (int64_t inputs : {1, 3, 127, 128, 129, 256, 257}) {
      const std::vector<float> w = RandomBFloat16Tensor(1, outputs * inputs);
      for (DType storage : {DType::kFloat32, DType::kBFloat16}) {
        const PackedMatrix packed = Packed(w, outputs, inputs, storage);
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 32, 33, 40}) {
          SCOPED_TRACE(testing::Message()
                       << rows << " x " << inputs << " -> " << outputs << " "
                       << std::string(Name(storage)));
          const int64_t x_stride = inputs + 3;
          const int64_t y_stride = outputs + 5;
          const std::vector<float> x = Inputs(rows, inputs, x_stride);
          std::vector<float> y(rows * y_stride, kCanary);
          Matmul({x.data(), x_stride, &packed, y.data(), y_stride, rows, false},
                 pool);
          ASSERT_TRUE(SameBits(
              y, Expected(x, x_stride, w, outputs, inputs, rows, y_stride)));
        }
      }
    }
  }
}

TEST_P(MatmulTest, Float32WeightsKeepAllTheirBits) {
  ThreadPool pool(1);
  const std::vector<float> w = RandomTensor(2, 33 * 100);
  const PackedMatrix packed = Packed(w, 33, 100, DType::kFloat32);
  const std::vector<float> x = Inputs(6, 100, 100);
  std::vector<float> y(6 * 33);
  Matmul({x.data(), 100, &packed, y.data(), 33, 6, false}, pool);
  EXPECT_TRUE(SameBits(y, Expected(x, 100, w, 33, 100, 6, 33)));
}

TEST_P(MatmulTest, MatchesFloat64) {
  constexpr int64_t kInputs = 255;
  constexpr int64_t kOutputs = 65;
  ThreadPool pool(1);
  const std::vector<float> w = RandomTensor(3, kOutputs * kInputs);
  const PackedMatrix packed = Packed(w, kOutputs, kInputs, DType::kFloat32);
  const std::vector<float> x = Inputs(5, kInputs, kInputs);
  std::vector<float> y(5 * kOutputs);
  Matmul({x.data(), kInputs, &packed, y.data(), kOutputs, 5, false}, pool);
  for (int64_t r = 0; r < 5; ++r) {
    std::vector<double> want(kOutputs, 0.0);
    for (int64_t n = 0; n < kOutputs; ++n) {
      for (int64_t k = 0; k < kInputs; ++k) {
        want[n] += static_cast<double>(x[r * kInputs + k]) *
                   static_cast<double>(w[n * kInputs + k]);
      }
    }
    EXPECT_TRUE(
        RelativelyNear({y.data() + r * kOutputs, kOutputs}, want, 1e-6));
  }
}

TEST_P(MatmulTest, AccumulateAddsTheFinishedSum) {
  ThreadPool pool(2);
  for (int64_t outputs : {1, 17, 65}) {
    constexpr int64_t kInputs = 37;
    constexpr int64_t kRows = 9;
    const int64_t stride = outputs + 4;
    const std::vector<float> w = RandomTensor(4, outputs * kInputs);
    const PackedMatrix packed = Packed(w, outputs, kInputs, DType::kFloat32);
    const std::vector<float> x = Inputs(kRows, kInputs, kInputs);
    std::vector<float> y = RandomTensor(5, kRows * stride);
    std::vector<float> want = y;
    const std::vector<float> sums =
        Expected(x, kInputs, w, outputs, kInputs, kRows, stride);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < outputs; ++n) {
        want[r * stride + n] += sums[r * stride + n];
      }
    }
    Matmul({x.data(), kInputs, &packed, y.data(), stride, kRows, true}, pool);
    EXPECT_TRUE(SameBits(y, want));
  }
}

// Large enough for many items, so that rows fall on every place of a tile and
// threads share the work.
TEST_P(MatmulTest, BitsDoNotDependOnOtherRowsOrThreads) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kInputs = 48;
  constexpr int64_t kOutputs = 200;
  const std::vector<float> w = RandomTensor(6, kOutputs * kInputs);
  const PackedMatrix packed = Packed(w, kOutputs, kInputs, DType::kFloat32);
  std::vector<float> x = Inputs(kRows, kInputs, kInputs);
  const auto run = [&](int64_t first, int64_t rows, int threads) {
    ThreadPool pool(threads);
    std::vector<float> y(rows * kOutputs);
    Matmul({x.data() + first * kInputs, kInputs, &packed, y.data(), kOutputs,
            rows, false},
           pool);
    return y;
  };
  const std::vector<float> all = run(0, kRows, 1);
  for (int threads : {2, 3}) EXPECT_TRUE(SameBits(run(0, kRows, threads), all));
  for (int64_t first = 0; first < kRows; first += 3) {
    for (int64_t rows : {1, 2, 7}) {
      if (first + rows > kRows) continue;
      EXPECT_TRUE(SameBits(run(first, rows, 1),
                           {all.data() + first * kOutputs,
                            static_cast<size_t>(rows * kOutputs)}));
    }
  }
  // A neighbour full of NaN stays its own problem.
  std::fill_n(x.begin() + 2 * kInputs, kInputs, kNaN);
  const std::vector<float> poisoned = run(0, 4, 1);
  for (int64_t row : {0, 1, 3}) {
    EXPECT_TRUE(SameBits({poisoned.data() + row * kOutputs, kOutputs},
                         {all.data() + row * kOutputs, kOutputs}));
  }
  EXPECT_TRUE(std::isnan(poisoned[2 * kOutputs]));
}

TEST_P(MatmulTest, NoRows) {
  ThreadPool pool(2);
  const std::vector<float> w = {1.0f};
  const PackedMatrix packed = Packed(w, 1, 1, DType::kFloat32);
  Matmul({nullptr, 1, &packed, nullptr, 1, 0, false}, pool);
}

RECURVE_INSTANTIATE_SIMD_TEST(MatmulTest);

}  // namespace
}  // namespace recurve
