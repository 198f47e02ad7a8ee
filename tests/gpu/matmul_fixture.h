#ifndef RECURVE_TESTS_GPU_MATMUL_FIXTURE_H_
#define RECURVE_TESTS_GPU_MATMUL_FIXTURE_H_

// Matrices and rows for tests of products, and what compares their results
// with float64 and with each other.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/matmul/cublas_matmul.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace matmul_testing {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr int64_t kYGap = 3;  // columns behind each row of y

inline float Round(WeightType type, float x) {
  switch (type) {
    case WeightType::kFloat32:
      return x;
    case WeightType::kBFloat16:
      return BFloat16ToFloat(FloatToBFloat16(x));
    case WeightType::kFloat16:
      return Float16ToFloat(FloatToFloat16(x));
  }
  return x;
}

inline std::vector<uint16_t> ToBits(WeightType type,
                                    const std::vector<float>& x) {
  std::vector<uint16_t> bits;
  for (float value : x) {
    bits.push_back(type == WeightType::kBFloat16 ? FloatToBFloat16(value)
                                                 : FloatToFloat16(value));
  }
  return bits;
}

inline std::vector<float> Random(TestRandom& random, int64_t n) {
  std::vector<float> x;
  for (int64_t i = 0; i < n; ++i) {
    x.push_back(static_cast<float>(random.Uniform(-1000000, 1000000)) * 1e-6f);
  }
  return x;
}

enum class Kind { kDecode, kDecodeFloat, kCublas };

// A matrix, rows to multiply with it, and what is in y before.
struct Case {
  Kind kind;
  WeightType type;
  int64_t outputs;
  int64_t inputs;
  int64_t padded;  // inputs of the kernel
  std::vector<float> w, x, y;
  std::unique_ptr<DeviceBuffer<float>> w_floats, x_floats;
  std::unique_ptr<DeviceBuffer<uint16_t>> w_halves, x_halves;
  int64_t rows;

  Case(Kind k, WeightType t, int64_t n_outputs, int64_t n_inputs,
       int64_t n_rows)
      : kind(k), type(t), outputs(n_outputs), inputs(n_inputs), rows(n_rows) {
    TestRandom random(static_cast<uint64_t>(outputs * 7 + inputs));
    padded = type == WeightType::kFloat32 ? (inputs + 3) / 4 * 4
                                          : (inputs + 31) / 32 * 32;
    const auto padded_rows = [&](int64_t count, float behind) {
      std::vector<float> all;
      for (int64_t r = 0; r < count; ++r) {
        const std::vector<float> row = Random(random, inputs);
        for (float value : row) all.push_back(Round(type, value));
        all.insert(all.end(), padded - inputs, behind);
      }
      return all;
    };
    w = padded_rows(outputs, 0.0f);
    // What is behind the inputs is not read.
    x = padded_rows(rows, kind == Kind::kCublas ? 0.0f : kNaN);
    y = Random(random, rows * (outputs + kYGap));
    if (type == WeightType::kFloat32) {
      w_floats = std::make_unique<DeviceBuffer<float>>(w);
    } else {
      w_halves = std::make_unique<DeviceBuffer<uint16_t>>(ToBits(type, w));
      x_halves = std::make_unique<DeviceBuffer<uint16_t>>(ToBits(type, x));
    }
    x_floats = std::make_unique<DeviceBuffer<float>>(x);
  }

  // Rows [first, first + count) by themselves.
  std::vector<float> Run(CublasMatmul& cublas, int64_t first, int64_t count,
                         bool add) {
    const int64_t stride = outputs + kYGap;
    DeviceBuffer<float> out(std::vector<float>(
        y.begin() + first * stride, y.begin() + (first + count) * stride));
    const void* weights = type == WeightType::kFloat32
                              ? static_cast<const void*>(w_floats->data())
                              : w_halves->data();
    const bool as_float =
        kind == Kind::kDecodeFloat || type == WeightType::kFloat32;
    const void* in =
        as_float ? static_cast<const void*>(x_floats->data() + first * padded)
                 : x_halves->data() + first * padded;
    if (kind == Kind::kCublas) {
      const absl::Status status =
          cublas.Multiply({type, weights, outputs, padded, padded, in, padded,
                           out.data(), stride, count, add},
                          nullptr);
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_EQ(
          LaunchDecodeMatmul({type, weights, outputs, padded, in, as_float,
                              inputs, padded, out.data(), stride, count, add},
                             nullptr),
          cudaSuccess);
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return out.Read();
  }
};

class MatmulGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto cublas = CublasMatmul::Create();
    ASSERT_TRUE(cublas.ok()) << cublas.status();
    cublas_ = *std::move(cublas);
  }

  void Check(Case& c, bool add) {
    SCOPED_TRACE(testing::Message()
                 << "kind " << static_cast<int>(c.kind) << " type "
                 << static_cast<int>(c.type) << " [" << c.outputs << ", "
                 << c.inputs << "] " << c.rows << " rows, add " << add);
    const std::vector<float> all = c.Run(*cublas_, 0, c.rows, add);
    const int64_t stride = c.outputs + kYGap;
    double worst = 0;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < stride; ++o) {
        const double before = c.y[r * stride + o];
        if (o >= c.outputs) {  // not ours
          ASSERT_EQ(all[r * stride + o], c.y[r * stride + o]);
          continue;
        }
        if ((r * 31 + o) % 7 != 0) continue;  // a sample is enough
        double want = add ? before : 0;
        for (int64_t i = 0; i < c.inputs; ++i) {
          want += static_cast<double>(c.w[o * c.padded + i]) *
                  c.x[r * c.padded + i];
        }
        worst = std::max(worst, std::abs(all[r * stride + o] - want));
      }
    }
    // A chain of float32 sums; tensor cores round them down.
    EXPECT_LE(worst, 2e-5 * std::sqrt(static_cast<double>(c.inputs)));

    const auto same = [&](int64_t first, int64_t count) {
      const std::vector<float> some = c.Run(*cublas_, first, count, add);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + first * stride,
                            some.size() * sizeof(float)),
                0)
          << "rows " << first << " to " << first + count;
    };
    for (const int64_t count :
         {1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 100, 128, 300}) {
      if (count > c.rows) break;
      same(0, count);
      same(c.rows - count, count);
    }
  }

  std::unique_ptr<CublasMatmul> cublas_;
};

inline constexpr std::pair<int64_t, int64_t> kSizes[] = {
    {80, 32},     {1, 24},    {258, 256},  {1420, 1600},
    {1600, 4992}, {17, 4288}, {4098, 328}, {4101, 4104}};
// Rows of this length do not fit a block's shared memory.
inline constexpr std::pair<int64_t, int64_t> kLongInputs = {48, 16384};
// Not cut into parts, and more inputs than a block holds at once.
inline constexpr std::pair<int64_t, int64_t> kWide = {8532, 1600};

}  // namespace matmul_testing
}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_MATMUL_FIXTURE_H_
