#include "kernels/lrpe/lrpe.h"

#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/kernels/lrpe_table.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr double kBase = 10000.0;
constexpr LrpeType kTypes[] = {LrpeType::kNone, LrpeType::kRotate,
                               LrpeType::kCosine};

TEST(LrpeTest, Sizes) {
  EXPECT_EQ(LrpeAngles(LrpeType::kNone, 64), 0);
  EXPECT_EQ(LrpeAngles(LrpeType::kRotate, 64), 32);
  EXPECT_EQ(LrpeAngles(LrpeType::kCosine, 64), 64);
  EXPECT_EQ(LrpeOutputDim(LrpeType::kNone, 64), 64);
  EXPECT_EQ(LrpeOutputDim(LrpeType::kRotate, 64), 64);
  EXPECT_EQ(LrpeOutputDim(LrpeType::kCosine, 64), 128);
}

TEST(LrpeTest, Theta) {
  EXPECT_TRUE(LrpeTheta(LrpeType::kNone, 64, kBase).empty());
  const std::vector<double> rotate = LrpeTheta(LrpeType::kRotate, 4, kBase);
  ASSERT_EQ(rotate.size(), 2u);
  EXPECT_DOUBLE_EQ(rotate[0], 1.0);
  EXPECT_DOUBLE_EQ(rotate[1], 0.01);  // 10000^(-2/4)
  const std::vector<double> cosine = LrpeTheta(LrpeType::kCosine, 4, kBase);
  ASSERT_EQ(cosine.size(), 4u);
  EXPECT_DOUBLE_EQ(cosine[0], 1.0);
  EXPECT_DOUBLE_EQ(cosine[1], 1e-2);
  EXPECT_DOUBLE_EQ(cosine[2], 1e-4);
  EXPECT_DOUBLE_EQ(cosine[3], 1e-6);
}

TEST(LrpeTest, PhaseSteps) {
  constexpr double kPi = 3.14159265358979323846;
  // A quarter of a turn, to the precision of a double; whole turns vanish, and
  // a negative angle turns backwards.
  const std::vector<uint64_t> steps =
      LrpePhaseSteps({0.0, kPi / 2, kPi / 2 + 4 * kPi, -kPi / 2});
  EXPECT_EQ(steps[0], 0u);
  constexpr double kQuarter = 0x1p62;
  EXPECT_NEAR(static_cast<double>(steps[1]), kQuarter, kQuarter * 1e-15);
  EXPECT_NEAR(static_cast<double>(steps[2]), kQuarter, kQuarter * 1e-14);
  EXPECT_NEAR(static_cast<double>(steps[3]), 3 * kQuarter, kQuarter * 1e-15);
}

// Angles of a family's own too: of either sign, and of more than a turn.
TEST(LrpeTest, TableAtFarPositions) {
  ThreadPool pool(2);
  const std::vector<int64_t> positions = {0, 1, 1000, 1'000'000,
                                          int64_t{1} << 31};
  const int64_t rows = static_cast<int64_t>(positions.size());
  std::vector<double> theta = LrpeTheta(LrpeType::kCosine, 64, kBase);
  theta.insert(theta.end(), {0.0, -0.7, -1e-3, 3.0, 10.0});
  const std::vector<uint64_t> steps = LrpePhaseSteps(theta);
  const int64_t angles = static_cast<int64_t>(theta.size());
  std::vector<float> cos(rows * angles, kNaN);
  std::vector<float> sin(rows * angles, kNaN);
  LrpeTable(
      {steps.data(), positions.data(), cos.data(), sin.data(), rows, angles},
      pool);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < angles; ++k) {
      const long double angle = static_cast<long double>(positions[r]) *
                                static_cast<long double>(theta[k]);
      // Rounding to float32 (6e-8) and half a step of 2^-64 turns a position.
      const double tolerance =
          6e-8 + 3.2 * 0x1p-64 * static_cast<double>(positions[r]);
      EXPECT_NEAR(cos[r * angles + k], static_cast<double>(std::cos(angle)),
                  tolerance)
          << "position " << positions[r] << " theta " << theta[k];
      EXPECT_NEAR(sin[r * angles + k], static_cast<double>(std::sin(angle)),
                  tolerance)
          << "position " << positions[r] << " theta " << theta[k];
    }
  }
}

// One rounding of the angle to float32, then as stated.
TEST(LrpeTest, Float32Table) {
  ThreadPool pool(2);
  const std::vector<int64_t> positions = {0, 1, 60, 2047, 100'000};
  const std::vector<float> theta = {-1.0f, -0.1f, 0.0f, 0.3f};
  const int64_t rows = static_cast<int64_t>(positions.size());
  const int64_t angles = static_cast<int64_t>(theta.size());
  for (const bool round : {false, true}) {
    for (const float log_decay : {0.0f, -1e-3f}) {
      std::vector<float> cos(rows * angles, kNaN);
      std::vector<float> sin(rows * angles, kNaN);
      LrpeFloat32Table({theta.data(), positions.data(), cos.data(), sin.data(),
                        rows, angles, log_decay, round},
                       pool);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < angles; ++k) {
          const float product = static_cast<float>(positions[r]) * theta[k];
          const double angle = product;
          const double decay =
              std::exp(static_cast<double>(std::abs(product) * log_decay));
          // bfloat16 keeps 8 bits.
          const double tolerance = decay * (round ? 0x1p-8 : 2e-7) + 1e-44;
          const int64_t at = r * angles + k;
          EXPECT_NEAR(cos[at], std::cos(angle) * decay, tolerance);
          EXPECT_NEAR(sin[at], std::sin(angle) * decay, tolerance);
          if (round && log_decay == 0) {
            EXPECT_EQ(BFloat16ToFloat(FloatToBFloat16(cos[at])), cos[at]);
          }
        }
      }
    }
  }
}

TEST(LrpeTest, PositionZeroIsExact) {
  ThreadPool pool(1);
  const LrpeTestTable table(LrpeType::kCosine, 16, kBase, {0}, pool);
  for (float value : table.cos) EXPECT_EQ(value, 1.0f);
  for (float value : table.sin) EXPECT_EQ(value, 0.0f);
}

TEST(LrpeTest, ApplyMatchesTheDefinition) {
  ThreadPool pool(1);
  for (LrpeType type : kTypes) {
    for (int64_t dim : {2, 8, 48, 64, 100}) {
      SCOPED_TRACE(testing::Message()
                   << "type " << static_cast<int>(type) << " dim " << dim);
      for (int64_t position : {0, 1, 77, 1'000'000}) {
        const std::vector<float> x = RandomTensor(dim, dim);
        const LrpeTestTable table(type, dim, kBase, {position}, pool);
        const int64_t out = LrpeOutputDim(type, dim);
        std::vector<float> y(out + 1, kCanary);
        LrpeApply(type, x.data(), table.cos.data(), table.sin.data(), dim,
                  y.data());
        EXPECT_EQ(y.back(), kCanary);
        y.pop_back();
        const std::vector<double> wide(x.begin(), x.end());
        EXPECT_TRUE(
            RelativelyNear(y, LrpeOracle(type, wide, position, kBase), 2e-7));
      }
    }
  }
}

// What the encoding is for: products see the distance alone.
TEST(LrpeTest, ProductsDependOnTheDistanceOnly) {
  ThreadPool pool(1);
  constexpr int64_t kDim = 64;
  const std::vector<float> q = RandomTensor(1, kDim);
  const std::vector<float> k = RandomTensor(2, kDim);
  for (LrpeType type : {LrpeType::kRotate, LrpeType::kCosine}) {
    const int64_t out = LrpeOutputDim(type, kDim);
    const auto product = [&](int64_t q_position, int64_t k_position) {
      const LrpeTestTable table(type, kDim, kBase, {q_position, k_position},
                                pool);
      std::vector<float> a(out);
      std::vector<float> b(out);
      LrpeApply(type, q.data(), table.cos.data(), table.sin.data(), kDim,
                a.data());
      LrpeApply(type, k.data(), table.cos.data() + table.angles,
                table.sin.data() + table.angles, kDim, b.data());
      double sum = 0.0;
      for (int64_t i = 0; i < out; ++i) {
        sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
      }
      return sum;
    };
    double previous = product(0, 0);
    for (int64_t distance : {1, 5, 300}) {
      const double near = product(distance, 0);
      EXPECT_GT(std::abs(near - previous), 1e-3);  // and do depend on it
      previous = near;
      for (int64_t offset : {1, 999, 1'000'000}) {
        EXPECT_NEAR(product(offset + distance, offset), near, 1e-5)
            << "distance " << distance << " offset " << offset;
      }
    }
  }
}

TEST(LrpeTest, ThreadsDoNotChangeBits) {
  std::vector<int64_t> positions(50);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = 7919 * i;
  ThreadPool one(1);
  const LrpeTestTable want(LrpeType::kRotate, 48, kBase, positions, one);
  for (int threads : {2, 3}) {
    ThreadPool pool(threads);
    const LrpeTestTable got(LrpeType::kRotate, 48, kBase, positions, pool);
    EXPECT_TRUE(SameBits(got.cos, want.cos));
    EXPECT_TRUE(SameBits(got.sin, want.sin));
  }
}

}  // namespace
}  // namespace recurve
