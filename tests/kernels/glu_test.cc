#include "kernels/glu/glu.h"

#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr Activation kPointwise[] = {Activation::kNone, Activation::kSilu,
                                     Activation::kRelu, Activation::kSigmoid,
                                     Activation::kOnePlusElu};

TEST(GluTest, MatchesTheDefinition) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 5;
  for (int64_t cols : {1, 17, 64, 100}) {
    for (Activation activation : kPointwise) {
      SCOPED_TRACE(testing::Message() << "cols " << cols << " activation "
                                      << static_cast<int>(activation));
      const int64_t x_stride = 2 * cols + 3;
      const int64_t y_stride = cols + 2;
      std::vector<float> x = RandomTensor(cols, kRows * x_stride, -5.0f, 5.0f);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 2 * cols; i < x_stride; ++i)
          x[r * x_stride + i] = kNaN;
      }
      std::vector<float> y(kRows * y_stride, kCanary);
      Glu({x.data(), x_stride, y.data(), y_stride, kRows, cols, activation},
          pool);
      for (int64_t r = 0; r < kRows; ++r) {
        const float* row = x.data() + r * x_stride;
        std::vector<double> want(cols);
        for (int64_t i = 0; i < cols; ++i) {
          want[i] = ActivationOracle(activation, row[i]) *
                    static_cast<double>(row[cols + i]);
        }
        EXPECT_TRUE(RelativelyNear(
            {y.data() + r * y_stride, static_cast<size_t>(cols)}, want, 1e-6));
        EXPECT_EQ(y[r * y_stride + cols], kCanary);
        EXPECT_EQ(y[r * y_stride + cols + 1], kCanary);
      }
    }
  }
}

TEST(GluTest, LargeInputsStayFinite) {
  ThreadPool pool(1);
  const std::vector<float> x = {-1e4f, 1e4f, 2.0f, 3.0f};
  std::vector<float> y(2);
  Glu({x.data(), 4, y.data(), 2, 1, 2, Activation::kSilu}, pool);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 3e4f);
}

TEST(GluTest, ThreadsDoNotChangeBits) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kCols = 50;
  const std::vector<float> x = RandomTensor(4, kRows * 2 * kCols);
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    std::vector<float> y(kRows * kCols);
    Glu({x.data(), 2 * kCols, y.data(), kCols, kRows, kCols, Activation::kSilu},
        pool);
    if (first.empty()) first = y;
    EXPECT_TRUE(SameBits(y, first));
  }
}

}  // namespace
}  // namespace recurve
