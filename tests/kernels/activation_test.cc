#include "kernels/common/activation.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr Activation kPointwise[] = {
    Activation::kNone,       Activation::kSilu,      Activation::kRelu,
    Activation::kSigmoid,    Activation::kElu,       Activation::kOnePlusElu,
    Activation::kTwoPlusElu, Activation::kLeakyRelu, Activation::kReluSquared,
    Activation::kGelu};

TEST(ActivationTest, PointwiseMatchesTheDefinition) {
  const std::vector<float> x = RandomTensor(1, 500, -12.0f, 12.0f);
  std::vector<Activation> all(std::begin(kPointwise), std::end(kPointwise));
  all.push_back(Activation::kExp);  // the one that overflows
  for (Activation activation : all) {
    SCOPED_TRACE(static_cast<int>(activation));
    for (float value : x) {
      const double want = ActivationOracle(activation, value);
      // In the tail of gelu the argument's rounding grows by its square.
      EXPECT_NEAR(
          Activate(activation, value), want,
          (activation == Activation::kGelu ? 3e-5 : 1e-6) * std::abs(want));
    }
  }
}

TEST(ActivationTest, LargeInputsStayFinite) {
  for (Activation activation : kPointwise) {
    SCOPED_TRACE(static_cast<int>(activation));
    for (float value : {-1e4f, -100.0f, -88.8f, 0.0f, 88.8f, 100.0f, 1e4f}) {
      const float got = Activate(activation, value);
      ASSERT_TRUE(std::isfinite(got)) << value;
      const double want = ActivationOracle(activation, value);
      EXPECT_NEAR(got, want, 1e-6 * std::abs(want) + 1e-35) << value;
    }
  }
}

TEST(ActivationTest, NaNIsNotHidden) {
  for (Activation activation :
       {Activation::kNone, Activation::kSilu, Activation::kSigmoid,
        Activation::kOnePlusElu}) {
    EXPECT_TRUE(std::isnan(Activate(activation, kNaN)));
  }
}

TEST(ActivationTest, SoftmaxMatchesTheDefinition) {
  for (int64_t n : {1, 2, 15, 64, 100}) {
    SCOPED_TRACE(n);
    const std::vector<float> x = RandomTensor(n, n, -8.0f, 8.0f);
    std::vector<float> y(n);
    ActivateRow(Activation::kSoftmax, x.data(), y.data(), n);
    EXPECT_TRUE(
        RelativelyNear(y, ActivationRowOracle(Activation::kSoftmax, x), 1e-6));
  }
}

TEST(ActivationTest, SoftmaxOfLargeInputs) {
  std::vector<float> x = {1e4f, -1e4f, 1e4f, 9999.0f, 0.0f};
  std::vector<float> y(x.size());
  ActivateRow(Activation::kSoftmax, x.data(), y.data(), 5);
  EXPECT_TRUE(
      RelativelyNear(y, ActivationRowOracle(Activation::kSoftmax, x), 1e-6));
  x.assign(5, -1e4f);
  ActivateRow(Activation::kSoftmax, x.data(), y.data(), 5);
  for (float value : y) EXPECT_FLOAT_EQ(value, 0.2f);
}

TEST(ActivationTest, RowMayBeInPlace) {
  for (Activation activation : {Activation::kSilu, Activation::kSoftmax}) {
    std::vector<float> x = RandomTensor(3, 33);
    std::vector<float> y(33);
    ActivateRow(activation, x.data(), y.data(), 33);
    ActivateRow(activation, x.data(), x.data(), 33);
    EXPECT_TRUE(SameBits(x, y));
  }
}

}  // namespace
}  // namespace recurve
