#include "kernels/norm/norm.h"

#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

struct NormShape {
  int64_t cols;
  int64_t groups;
};
constexpr NormShape kShapes[] = {{1, 1},   {15, 1}, {16, 1}, {17, 1}, {65, 1},
                                 {256, 1}, {15, 5}, {64, 4}, {102, 3}};

std::vector<double> NormOracle(const std::vector<double>& x,
                               const std::vector<float>& weight, int64_t groups,
                               float eps) {
  const int64_t cols = static_cast<int64_t>(x.size());
  const int64_t width = cols / groups;
  std::vector<double> y(cols);
  for (int64_t i = 0; i < cols; ++i) {
    double squares = 0.0;
    for (int64_t j = 0; j < width; ++j) {
      const double value = x[i / width * width + j];
      squares += value * value;
    }
    y[i] = x[i] / std::sqrt(squares / static_cast<double>(width) + eps);
    if (!weight.empty()) y[i] *= weight[i];
  }
  return y;
}

class NormTest : public testing::TestWithParam<NormShape> {
 protected:
  static constexpr int64_t kRows = 7;

  void SetUp() override {
    x_ = RandomTensor(1, kRows * stride_);
    gate_ = RandomTensor(2, kRows * stride_, -6.0f, 6.0f);
    for (int64_t r = 0; r < kRows; ++r) {
      // Rows of very different size, the last one all zero.
      for (int64_t i = 0; i < cols_; ++i) {
        x_[r * stride_ + i] *= r == kRows - 1 ? 0.0f : std::pow(10.0f, r - 3);
      }
      for (int64_t i = cols_; i < stride_; ++i) {
        x_[r * stride_ + i] = gate_[r * stride_ + i] = kNaN;
      }
    }
  }

  std::vector<double> Row(const std::vector<float>& tensor, int64_t row) const {
    const auto first = tensor.begin() + row * stride_;
    return std::vector<double>(first, first + cols_);
  }

  // The row must be `want`, and the gap behind it untouched.
  void ExpectRow(const std::vector<float>& y, int64_t row,
                 const std::vector<double>& want) const {
    const float* got = y.data() + row * stride_;
    EXPECT_TRUE(RelativelyNear({got, static_cast<size_t>(cols_)}, want, 2e-6))
        << "row " << row;
    for (int64_t i = cols_; i < stride_; ++i) EXPECT_EQ(got[i], kCanary);
  }

  RmsNormParams Params(const std::vector<float>& weight,
                       std::vector<float>& y) const {
    return {x_.data(), stride_, weight.empty() ? nullptr : weight.data(),
            y.data(),  stride_, kRows,
            cols_,     groups_, kEps};
  }

  static constexpr float kEps = 1e-5f;
  const int64_t cols_ = GetParam().cols;
  const int64_t groups_ = GetParam().groups;
  const int64_t stride_ = cols_ + 2;
  std::vector<float> x_;
  std::vector<float> gate_;
};

TEST_P(NormTest, RmsNorm) {
  ThreadPool pool(2);
  for (const std::vector<float>& weight :
       {std::vector<float>(), RandomTensor(3, cols_)}) {
    std::vector<float> y(kRows * stride_, kCanary);
    RmsNorm(Params(weight, y), pool);
    for (int64_t r = 0; r < kRows; ++r) {
      ExpectRow(y, r, NormOracle(Row(x_, r), weight, groups_, kEps));
    }
  }
}

TEST_P(NormTest, InPlaceGivesTheSameBits) {
  ThreadPool pool(1);
  const std::vector<float> weight = RandomTensor(3, cols_);
  std::vector<float> y(kRows * stride_, kNaN);
  RmsNorm(Params(weight, y), pool);
  RmsNorm(Params(weight, x_), pool);
  EXPECT_TRUE(SameBits(x_, y));
}

TEST_P(NormTest, BitsDoNotDependOnRowsOrThreads) {
  const std::vector<float> weight = RandomTensor(3, cols_);
  std::vector<float> y(kRows * stride_, kCanary);
  ThreadPool one(1);
  RmsNorm(Params(weight, y), one);
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    std::vector<float> single(kRows * stride_, kCanary);
    for (int64_t r = 0; r < kRows; ++r) {
      RmsNormParams params = Params(weight, single);
      params.x += r * stride_;
      params.y += r * stride_;
      params.rows = 1;
      RmsNorm(params, pool);
    }
    EXPECT_TRUE(SameBits(single, y));
    std::vector<float> all(kRows * stride_, kCanary);
    RmsNorm(Params(weight, all), pool);
    EXPECT_TRUE(SameBits(all, y));
  }
}

TEST_P(NormTest, GatedNormOnBothSides) {
  ThreadPool pool(2);
  for (const std::vector<float>& weight :
       {std::vector<float>(), RandomTensor(3, cols_)}) {
    for (Activation activation : {Activation::kSigmoid, Activation::kSilu}) {
      for (bool after : {false, true}) {
        std::vector<float> y(kRows * stride_, kCanary);
        GatedNorm({Params(weight, y), gate_.data(), stride_, activation, after},
                  pool);
        for (int64_t r = 0; r < kRows; ++r) {
          std::vector<double> want = Row(x_, r);
          const std::vector<double> gate = Row(gate_, r);
          const auto apply_gate = [&] {
            for (int64_t i = 0; i < cols_; ++i) {
              want[i] *= ActivationOracle(activation, gate[i]);
            }
          };
          if (!after) apply_gate();
          want = NormOracle(want, weight, groups_, kEps);
          if (after) apply_gate();
          ExpectRow(y, r, want);
        }
      }
    }
  }
}

TEST_P(NormTest, LayerNorm) {
  ThreadPool pool(2);
  const std::vector<float> weight = RandomTensor(3, cols_);
  const std::vector<float> bias = RandomTensor(4, cols_);
  for (const bool affine : {false, true}) {
    std::vector<float> y(kRows * stride_, kCanary);
    LayerNorm(
        {x_.data(), stride_, affine ? weight.data() : nullptr,
         affine ? bias.data() : nullptr, y.data(), stride_, kRows, cols_, kEps},
        pool);
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<double> want = Row(x_, r);
      double mean = 0.0;
      for (double value : want) mean += value / static_cast<double>(cols_);
      for (double& value : want) value -= mean;
      want = NormOracle(want, affine ? weight : std::vector<float>(), 1, kEps);
      for (int64_t i = 0; affine && i < cols_; ++i) want[i] += bias[i];
      ExpectRow(y, r, want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormTest, testing::ValuesIn(kShapes),
                         [](const auto& info) {
                           return "Cols" + std::to_string(info.param.cols) +
                                  "Groups" + std::to_string(info.param.groups);
                         });

}  // namespace
}  // namespace recurve
