// Norms and gates on the GPU against the CPU's, which the other tests hold
// against float64.

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/glu/glu.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr ElementType kTypes[] = {ElementType::kFloat32,
                                  ElementType::kBFloat16};
constexpr Activation kPointwise[] = {Activation::kNone, Activation::kSilu,
                                     Activation::kRelu, Activation::kSigmoid,
                                     Activation::kOnePlusElu};
constexpr float kEps = 1e-5f;

struct Shape {
  int64_t rows, cols, groups;
};
constexpr Shape kShapes[] = {
    {1, 1, 1},     {3, 255, 1},  {7, 256, 4},  {2, 257, 1}, {33, 1600, 1},
    {5, 4992, 78}, {2, 2056, 2}, {4, 1027, 1}, {9, 96, 3},  {2, 3000, 1},
    {3, 512, 1},   {3, 513, 1},  {5, 1024, 1}, {2, 2048, 2}};

enum class Kind { kNorm, kGateBefore, kGateAfter };

struct Case {
  Shape shape;
  ElementType type;
  Kind kind;
  bool weighted;
  Activation activation;
  int64_t gap;  // between rows
};

// Rows of x and gate with gaps of NaN.
std::vector<float> Rows(uint64_t seed, const Case& c) {
  const int64_t stride = c.shape.cols + c.gap;
  std::vector<float> x = RandomTensor(seed, c.shape.rows * stride, -2.0f, 2.0f);
  for (int64_t r = 0; r < c.shape.rows; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      float& value = x[r * stride + i];
      value = i < c.shape.cols ? value * static_cast<float>(1 + i % 7 + 10 * r)
                               : kNaN;
    }
  }
  return Rounded(c.type, x);
}

std::vector<float> OnCpu(const Case& c, const std::vector<float>& x,
                         const std::vector<float>& gate,
                         const std::vector<float>& weight) {
  const auto [rows, cols, groups] = c.shape;
  const int64_t stride = cols + c.gap;
  std::vector<float> y(rows * stride, kCanary);
  const RmsNormParams norm = {
      x.data(), stride, c.weighted ? weight.data() : nullptr,
      y.data(), stride, rows,
      cols,     groups, kEps};
  ThreadPool pool(1);
  if (c.kind == Kind::kNorm) {
    RmsNorm(norm, pool);
  } else {
    GatedNorm(
        {norm, gate.data(), stride, c.activation, c.kind == Kind::kGateAfter},
        pool);
  }
  return y;
}

// What a 16-bit type holds for a float, and back.
uint16_t ToHalf(WeightType type, float value) {
  return type == WeightType::kBFloat16 ? FloatToBFloat16(value)
                                       : FloatToFloat16(value);
}
float FromHalf(WeightType type, uint16_t bits) {
  return type == WeightType::kBFloat16 ? BFloat16ToFloat(bits)
                                       : Float16ToFloat(bits);
}

// The first `live` rows of x, all of them in the launch; rounded to a 16-bit
// type as they are written, if one is given.
std::vector<float> OnGpu(const Case& c, const std::vector<float>& x,
                         const std::vector<float>& gate,
                         const std::vector<float>& weight, int32_t live,
                         std::optional<WeightType> rounded = std::nullopt) {
  const auto [rows, cols, groups] = c.shape;
  const int64_t stride = cols + c.gap;
  EXPECT_FALSE(rounded && c.kind == Kind::kNorm);  // no kernel does that
  DeviceTensor device_x(c.type, x);
  DeviceTensor device_gate(c.type, gate);
  DeviceTensor y(c.type, std::vector<float>(x.size(), kCanary));
  DeviceBuffer<uint16_t> y_rounded(std::vector<uint16_t>(
      x.size(), rounded ? ToHalf(*rounded, kCanary) : uint16_t{0}));
  DeviceBuffer<float> device_weight(weight);
  DeviceBuffer<int32_t> live_rows(std::vector<int32_t>{live});
  CudaGatedNormParams p = {};
  p.norm.type = c.type;
  p.norm.x = device_x.data();
  p.norm.x_stride = stride;
  p.norm.weight = c.weighted ? device_weight.data() : nullptr;
  p.norm.y = rounded ? static_cast<void*>(y_rounded.data()) : y.data();
  p.norm.y_stride = stride;
  p.norm.rows = static_cast<int64_t>(x.size()) / stride;
  p.norm.live_rows = live_rows.data();
  p.norm.cols = cols;
  p.norm.groups = groups;
  p.norm.eps = kEps;
  p.gate = device_gate.data();
  p.gate_stride = stride;
  p.activation = c.activation;
  p.gate_after_norm = c.kind == Kind::kGateAfter;
  EXPECT_EQ(c.kind == Kind::kNorm ? LaunchRmsNorm(p.norm, nullptr)
            : rounded             ? LaunchRoundedGatedNorm(p, *rounded, nullptr)
                                  : LaunchGatedNorm(p, nullptr),
            cudaSuccess);
  if (!rounded) return y.Read();
  std::vector<float> values;
  for (uint16_t bits : y_rounded.Read())
    values.push_back(FromHalf(*rounded, bits));
  return values;
}

class NormGpuTest : public GpuTest {
 protected:
  static void ExpectCpu(const Case& c) {
    const auto [rows, cols, groups] = c.shape;
    const int64_t stride = cols + c.gap;
    const std::vector<float> x = Rows(1, c);
    const std::vector<float> gate = Rows(2, c);
    const std::vector<float> weight = RandomTensor(3, cols, -2.0f, 2.0f);
    const std::vector<float> want = OnCpu(c, x, gate, weight);
    const std::vector<float> got =
        OnGpu(c, x, gate, weight, static_cast<int32_t>(rows));
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i] == kCanary) {
        ASSERT_EQ(got[i], Rounded(c.type, {kCanary})[0]) << "gap at " << i;
        continue;
      }
      const double tolerance = std::max(4e-6, RoundingOf(c.type));
      ASSERT_NEAR(got[i], want[i], tolerance * (std::abs(want[i]) + 1e-3)) << i;
    }

    // The last row alone gives the same bits; no rows, none.
    const auto last = [&](const std::vector<float>& v) {
      return std::vector<float>(v.end() - stride, v.end());
    };
    Case alone = c;
    alone.shape.rows = 1;
    EXPECT_TRUE(
        SameBits(OnGpu(alone, last(x), last(gate), weight, 1), last(got)));
    for (float value : OnGpu(c, x, gate, weight, 0)) {
      ASSERT_EQ(value, Rounded(c.type, {kCanary})[0]);
    }
  }
};

TEST_F(NormGpuTest, MatchesTheCpu) {
  for (const Shape& shape : kShapes) {
    for (ElementType type : kTypes) {
      for (Kind kind : {Kind::kNorm, Kind::kGateBefore, Kind::kGateAfter}) {
        for (int64_t gap : {0, 3, 8}) {
          for (bool weighted : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << shape.rows << " x " << shape.cols << " groups "
                         << shape.groups << " type " << static_cast<int>(type)
                         << " kind " << static_cast<int>(kind) << " gap " << gap
                         << " weighted " << weighted);
            ASSERT_NO_FATAL_FAILURE(ExpectCpu(
                {shape, type, kind, weighted, Activation::kSilu, gap}));
          }
        }
      }
    }
  }
  for (Activation activation : kPointwise) {
    ASSERT_NO_FATAL_FAILURE(ExpectCpu({{4, 96, 3},
                                       ElementType::kFloat32,
                                       Kind::kGateBefore,
                                       true,
                                       activation,
                                       0}));
  }
}

TEST_F(NormGpuTest, RoundsGatedRowsOnce) {
  for (const Shape& shape : kShapes) {
    for (Kind kind : {Kind::kGateBefore, Kind::kGateAfter}) {
      for (Activation activation : {Activation::kSigmoid, Activation::kRelu}) {
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
        const Case c = {shape, ElementType::kFloat32, kind, true, activation,
                        8};
        const std::vector<float> x = Rows(1, c);
        const std::vector<float> gate = Rows(2, c);
        const std::vector<float> weight =
            RandomTensor(3, shape.cols, -2.0f, 2.0f);
        const auto rows = static_cast<int32_t>(shape.rows);
        const std::vector<float> exact = OnGpu(c, x, gate, weight, rows);
        for (WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
          std::vector<float> want;
          for (float value : exact)
            want.push_back(FromHalf(type, ToHalf(type, value)));
          EXPECT_TRUE(SameBits(OnGpu(c, x, gate, weight, rows, type), want));
        }
      }
    }
  }
}

TEST_F(NormGpuTest, RefusesBadSizes) {
  CudaGatedNormParams p = {};
  p.norm.rows = 1;
  p.norm.cols = 7;
  p.norm.groups = 2;
  EXPECT_EQ(LaunchRmsNorm(p.norm, nullptr), cudaErrorInvalidValue);
  p.norm.groups = 0;
  EXPECT_EQ(LaunchRmsNorm(p.norm, nullptr), cudaErrorInvalidValue);
  p.norm.groups = 1;
  float anything = 0.0f;
  p.gate = &anything;
  p.activation = Activation::kSoftmax;
  EXPECT_EQ(LaunchGatedNorm(p, nullptr), cudaErrorInvalidValue);
  p.norm.rows = 0;
  EXPECT_EQ(LaunchRmsNorm(p.norm, nullptr), cudaSuccess);
}

TEST_F(NormGpuTest, GluMatchesTheCpu) {
  for (const auto& [rows, cols] :
       {std::pair(1, 1), std::pair(3, 255), std::pair(5, 1024),
        std::pair(2, 4264), std::pair(33, 80)}) {
    for (ElementType type : kTypes) {
      for (Activation activation : kPointwise) {
        const std::vector<float> x =
            Rounded(type, RandomTensor(4, rows * 2 * cols, -6.0f, 6.0f));
        std::vector<float> want(rows * cols);
        ThreadPool pool(1);
        Glu({x.data(), 2 * cols, want.data(), cols, rows, cols, activation},
            pool);
        DeviceTensor device_x(type, x);
        DeviceTensor y(type, std::vector<float>(want.size(), kNaN));
        CudaGluParams p = {};
        p.type = type;
        p.x = device_x.data();
        p.x_stride = 2 * cols;
        p.y = y.data();
        p.y_stride = cols;
        p.rows = rows;
        p.cols = cols;
        p.activation = activation;
        ASSERT_EQ(LaunchGlu(p, nullptr), cudaSuccess);
        const std::vector<float> got = y.Read();
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i],
                      RoundingOf(type) * (std::abs(want[i]) + 1e-3))
              << rows << " x " << cols << " at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace recurve
