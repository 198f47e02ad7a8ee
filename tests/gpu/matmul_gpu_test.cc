// Products with weights on the GPU against float64, and bit for bit: a row's
// result is the same alone and in any batch.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/matmul/cublas_matmul.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/decode_matmul_hopper.h"
#include "kernels/matmul/gated_matmul_plan.h"
#include "kernels/matmul/wide_matmul_plan.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kYGap = 3;  // columns behind each row of y

float Round(WeightType type, float x) {
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

std::vector<uint16_t> ToBits(WeightType type, const std::vector<float>& x) {
  std::vector<uint16_t> bits;
  for (float value : x) {
    bits.push_back(type == WeightType::kBFloat16 ? FloatToBFloat16(value)
                                                 : FloatToFloat16(value));
  }
  return bits;
}

std::vector<float> Random(TestRandom& random, int64_t n) {
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

const std::pair<int64_t, int64_t> kSizes[] = {
    {80, 32},     {1, 24},    {258, 256},  {1420, 1600},
    {1600, 4992}, {17, 4288}, {4098, 328}, {4101, 4104}};
// Rows of this length do not fit a block's shared memory.
const std::pair<int64_t, int64_t> kLongInputs = {48, 16384};
// Not cut into parts, and more inputs than a block holds at once.
const std::pair<int64_t, int64_t> kWide = {8532, 1600};

TEST_F(MatmulGpuTest, Decode) {
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    std::vector<std::pair<int64_t, int64_t>> sizes(std::begin(kSizes),
                                                   std::end(kSizes));
    sizes.push_back(kLongInputs);
    sizes.push_back(kWide);
    for (const auto& [outputs, inputs] : sizes) {
      for (const bool add : {false, true}) {
        Case halves(Kind::kDecode, type, outputs, inputs, 130);
        Check(halves, add);
        if (!DecodeMatmulTakesFloats((inputs + 31) / 32 * 32, 8)) continue;
        Case floats(Kind::kDecodeFloat, type, outputs, inputs, 8);
        Check(floats, add);
      }
    }
  }
}

// Small matrices of which the inputs are cut into parts or not, for every
// number of rows: every kernel, tile and edge of one, but those of
// ManyOutputs. Rows of y begin at multiples of 16 bytes.
TEST_F(MatmulGpuTest, EveryNumberOfRows) {
  constexpr int64_t kRows = 257;
  for (const auto& [outputs, inputs] : std::vector<std::pair<int64_t, int64_t>>{
           {201, 712}, {4101, 200}, {4101, 4104}}) {
    for (const WeightType type :
         {WeightType::kBFloat16, WeightType::kFloat16}) {
      Case c(Kind::kDecode, type, outputs, inputs, kRows);
      Case floats(Kind::kDecodeFloat, type, outputs, inputs,
                  kDecodeMatmulFloatRows);
      floats.x = c.x;
      floats.x_floats = std::make_unique<DeviceBuffer<float>>(c.x);
      const int64_t stride = outputs + kYGap;
      const std::vector<float> all = c.Run(*cublas_, 0, kRows, false);
      for (int64_t count = 1; count < kRows; ++count) {
        const int64_t first = kRows - count;
        const std::vector<float> some = c.Run(*cublas_, first, count, false);
        for (int64_t r = 0; r < count; ++r) {
          ASSERT_EQ(std::memcmp(&some[r * stride], &all[(first + r) * stride],
                                outputs * sizeof(float)),
                    0)
              << outputs << " outputs, " << count << " rows, row " << r;
        }
      }
      for (int64_t count = 1; count <= kDecodeMatmulFloatRows; ++count) {
        const std::vector<float> some = floats.Run(*cublas_, 0, count, false);
        for (int64_t r = 0; r < count; ++r) {
          ASSERT_EQ(std::memcmp(&some[r * stride], &all[r * stride],
                                outputs * sizeof(float)),
                    0)
              << outputs << " outputs, " << count << " float rows, row " << r;
        }
      }
    }
  }
}

// As in prompts: every form of wide_matmul_plan.h, around edges of its tiles.
// Other rows in the product change no bit.
TEST_F(MatmulGpuTest, HundredsOfRows) {
  int multiprocessors = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors,
                                   cudaDevAttrMultiProcessorCount, 0),
            cudaSuccess);
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    for (const auto& [outputs, inputs] :
         std::vector<std::pair<int64_t, int64_t>>{
             {1609, 712}, {1600, 712}, {1420, 200}, {8531, 200}}) {
      const bool parts = DecodeMatmulSplits(outputs, inputs) > 1;
      std::set<int> forms;
      for (const int64_t rows : {193, 200, 255, 256, 258, 320, 321, 383, 385,
                                 640, 641, 1279, 1281, 1664, 1665}) {
        if (!parts && rows > 700) continue;
        forms.insert(ChooseWideForm(rows, outputs, inputs, multiprocessors));
        Case c(Kind::kDecode, type, outputs, inputs, rows);
        const int64_t stride = outputs + kYGap;
        for (const bool add : {false, true}) {
          const std::vector<float> all = c.Run(*cublas_, 0, rows, add);
          for (int64_t first = 0; first < rows; first += 100) {
            const int64_t count = std::min<int64_t>(100, rows - first);
            const std::vector<float> some = c.Run(*cublas_, first, count, add);
            ASSERT_EQ(std::memcmp(some.data(), all.data() + first * stride,
                                  some.size() * sizeof(float)),
                      0)
                << outputs << " outputs, " << rows << " rows, from " << first
                << ", add " << add;
          }
        }
      }
      if (multiprocessors != 132) continue;  // those of an H200
      EXPECT_EQ(forms,
                parts ? (std::set<int>{1, 2, 3, 4}) : (std::set<int>{2, 3}))
          << outputs;
    }
  }
}

// From 32,768 outputs on, as a head has, more rows than 64 have tiles of their
// own.
TEST_F(MatmulGpuTest, ManyOutputs) {
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    Case c(Kind::kDecode, type, 32840, 136, 257);
    Check(c, false);
    const int64_t stride = c.outputs + kYGap;
    const std::vector<float> all = c.Run(*cublas_, 0, c.rows, false);
    for (const int64_t count : {129, 200, 255, 256}) {
      const std::vector<float> some = c.Run(*cublas_, 1, count, false);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + stride,
                            some.size() * sizeof(float)),
                0)
          << count << " rows";
    }
  }
}

// What is fused gives the bits of the kernels it stands for.
TEST_F(MatmulGpuTest, NormBefore) {
  if (!DecodeMatmulFuses()) GTEST_SKIP() << "this device fuses nothing";
  for (const auto& [outputs, inputs] :
       std::vector<std::pair<int64_t, int64_t>>{{1420, 1600},
                                                {4100, 1027},
                                                {1110, 513},
                                                {1110, 1024},
                                                {5504, 2060},
                                                {5504, 4100},
                                                {5504, 600}}) {
    Case c(Kind::kDecodeFloat, WeightType::kBFloat16, outputs, inputs, 8);
    TestRandom random(1);
    for (float& x : c.x) x *= 3.0f;
    c.x_floats = std::make_unique<DeviceBuffer<float>>(c.x);
    DeviceBuffer<float> weight(Random(random, inputs));
    for (const float* const w : {weight.data(), static_cast<float*>(nullptr)}) {
      for (const int64_t rows : {1, 5, 8}) {
        DeviceBuffer<float> normed(std::vector<float>(rows * c.padded, kNaN));
        ASSERT_EQ(LaunchRmsNorm({ElementType::kFloat32, c.x_floats->data(),
                                 c.padded, w, normed.data(), c.padded, rows,
                                 nullptr, inputs, 1, 1e-5f},
                                nullptr),
                  cudaSuccess);
        DecodeMatmulParams p = {c.type,        c.w_halves->data(),
                                outputs,       c.padded,
                                normed.data(), true,
                                inputs,        c.padded,
                                nullptr,       outputs,
                                rows,          false};
        DeviceBuffer<float> want(std::vector<float>(rows * outputs, kNaN));
        DeviceBuffer<float> got(std::vector<float>(rows * outputs, kNaN));
        p.y = want.data();
        ASSERT_EQ(LaunchDecodeMatmul(p, nullptr), cudaSuccess);
        p.x = c.x_floats->data();
        p.y = got.data();
        p.norm = true;
        p.norm_weight = w;
        p.norm_eps = 1e-5f;
        ASSERT_EQ(LaunchDecodeMatmul(p, nullptr), cudaSuccess);
        EXPECT_EQ(want.Read(), got.Read()) << outputs << ", " << rows;
      }
    }
  }
}

TEST_F(MatmulGpuTest, GateAfter) {
  if (!DecodeMatmulFuses()) GTEST_SKIP() << "this device fuses nothing";
  int multiprocessors = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors,
                                   cudaDevAttrMultiProcessorCount, 0),
            cudaSuccess);
  std::set<int> gated_forms;
  for (const auto& [type, outputs, inputs] :
       std::vector<std::tuple<WeightType, int64_t, int64_t>>{
           {WeightType::kBFloat16, 2 * 101, 712},
           {WeightType::kBFloat16, 2 * 2061, 712},
           {WeightType::kFloat16, 2 * 2061, 200},
           {WeightType::kBFloat16, 2 * 2052, 64},
           {WeightType::kBFloat16, 2 * 2056, 64},
           {WeightType::kBFloat16, 2 * 801, 712},
           {WeightType::kBFloat16, 2 * 1301, 712}}) {
    const int64_t features = outputs / 2;
    // Strides of the output. Rows are 16-byte aligned except for 2052 features.
    const int64_t stride = features == 2052 ? features : (features + 7) / 8 * 8;
    Case halves(Kind::kDecode, type, outputs, inputs, 4100);
    // The last six: forms that no fewer rows take, and a second group of rows.
    for (const int64_t rows :
         {1,   5,   8,   9,   17,  33,  64,  100,  128,  129,  140,  193,
          224, 255, 256, 257, 300, 700, 640, 1281, 1664, 2048, 2305, 4100}) {
      for (const bool as_float : {false, true}) {
        if (as_float && rows > kDecodeMatmulFloatRows) continue;
        DecodeMatmulParams p = {
            halves.type,
            halves.w_halves->data(),
            outputs,
            halves.padded,
            as_float ? static_cast<const void*>(halves.x_floats->data())
                     : halves.x_halves->data(),
            as_float,
            inputs,
            halves.padded,
            nullptr,
            outputs,
            rows,
            false};
        DeviceBuffer<float> gates(std::vector<float>(rows * outputs, kNaN));
        DeviceBuffer<float> want(std::vector<float>(rows * stride, -7.0f));
        DeviceBuffer<float> got(std::vector<float>(rows * stride, -7.0f));
        p.y = gates.data();
        ASSERT_EQ(LaunchDecodeMatmul(p, nullptr), cudaSuccess);
        ASSERT_EQ(LaunchGlu({ElementType::kFloat32, gates.data(), outputs,
                             want.data(), stride, rows, nullptr, features,
                             Activation::kSilu},
                            nullptr),
                  cudaSuccess);
        p.y = got.data();
        p.y_stride = stride;
        p.gate = true;
        p.activation = Activation::kSilu;
        ASSERT_EQ(LaunchDecodeMatmul(p, nullptr), cudaSuccess);
        EXPECT_EQ(want.Read(), got.Read()) << outputs << ", " << rows;
        DeviceBuffer<uint16_t> rounded(
            ToBits(p.type, std::vector<float>(rows * stride, -7.0f)));
        p.y = reinterpret_cast<float*>(rounded.data());
        p.y_is_half = true;
        EXPECT_EQ(GatedMatmulTakes(p),
                  rows >= kGatedLeastRows && features > 2052);
        if (GatedMatmulTakes(p)) {
          gated_forms.insert(ChooseGatedForm(rows, features, multiprocessors));
        }
        ASSERT_EQ(LaunchDecodeMatmul(p, nullptr), cudaSuccess);
        EXPECT_EQ(rounded.Read(), ToBits(p.type, want.Read()))
            << outputs << ", " << rows;
      }
    }
  }
  if (multiprocessors == 132) {
    EXPECT_EQ(gated_forms, (std::set<int>{0, 1, 2}));
  }
}

// A norm that rounds is a norm, rounded.
TEST_F(MatmulGpuTest, RoundedNorm) {
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    for (const int64_t cols : {1600, 1027, 40}) {
      constexpr int64_t kRows = 5;
      TestRandom random(static_cast<uint64_t>(cols));
      DeviceBuffer<float> x(Random(random, kRows * cols));
      DeviceBuffer<float> weight(Random(random, cols));
      DeviceBuffer<float> want(std::vector<float>(kRows * cols, kNaN));
      DeviceBuffer<uint16_t> got(std::vector<uint16_t>(kRows * cols, 0xffff));
      CudaRmsNormParams p = {ElementType::kFloat32,
                             x.data(),
                             cols,
                             weight.data(),
                             want.data(),
                             cols,
                             kRows,
                             nullptr,
                             cols,
                             1,
                             1e-5f};
      ASSERT_EQ(LaunchRmsNorm(p, nullptr), cudaSuccess);
      p.y = got.data();
      ASSERT_EQ(LaunchRoundedRmsNorm(p, type, nullptr), cudaSuccess);
      EXPECT_EQ(got.Read(), ToBits(type, want.Read())) << cols;
    }
  }
}

// So is a gate that rounds, by fours and one by one.
TEST_F(MatmulGpuTest, RoundedGate) {
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    for (const int64_t cols : {1600, 1027, 40}) {
      constexpr int64_t kRows = 5;
      TestRandom random(static_cast<uint64_t>(cols));
      DeviceBuffer<float> x(Random(random, kRows * 2 * cols));
      DeviceBuffer<float> want(std::vector<float>(kRows * cols, kNaN));
      DeviceBuffer<uint16_t> got(std::vector<uint16_t>(kRows * cols, 0xffff));
      CudaGluParams p = {ElementType::kFloat32,
                         x.data(),
                         2 * cols,
                         want.data(),
                         cols,
                         kRows,
                         nullptr,
                         cols,
                         Activation::kSilu};
      ASSERT_EQ(LaunchGlu(p, nullptr), cudaSuccess);
      p.y = got.data();
      ASSERT_EQ(LaunchRoundedGlu(p, type, nullptr), cudaSuccess);
      EXPECT_EQ(got.Read(), ToBits(type, want.Read())) << cols;
      EXPECT_EQ(LaunchRoundedGlu(p, WeightType::kFloat32, nullptr),
                cudaErrorInvalidValue);
    }
  }
}

// The two ways to bring in the rows give the same bits.
TEST_F(MatmulGpuTest, DecodeOfFloatsIsDecodeOfHalves) {
  Case halves(Kind::kDecode, WeightType::kBFloat16, 1420, 1600, 16);
  Case floats(Kind::kDecodeFloat, WeightType::kBFloat16, 1420, 1600, 16);
  for (const int64_t rows : {1, 3, 8}) {
    EXPECT_EQ(halves.Run(*cublas_, 0, rows, false),
              floats.Run(*cublas_, 0, rows, false));
  }
}

TEST_F(MatmulGpuTest, Cublas) {
  for (const WeightType type :
       {WeightType::kFloat32, WeightType::kBFloat16, WeightType::kFloat16}) {
    for (const auto& [outputs, inputs] : kSizes) {
      for (const bool add : {false, true}) {
        Case c(Kind::kCublas, type, outputs, inputs, 600);
        Check(c, add);
      }
    }
  }
}

// So do the algorithms that are chosen by the rows.
TEST_F(MatmulGpuTest, CublasTuned) {
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    for (const auto& [outputs, inputs] :
         {std::pair<int64_t, int64_t>(1424, 1600), {1600, 4992}, {272, 256}}) {
      constexpr int64_t kRows = 2100;
      const bool add = inputs == 4992;
      Case c(Kind::kCublas, type, outputs, inputs, kRows);
      const int64_t stride = outputs + kYGap;
      // As it is without tuning.
      const std::vector<float> one = c.Run(*cublas_, 0, 1, add);
      const std::vector<float> some = c.Run(*cublas_, 0, 512, add);
      auto tuned = CublasMatmul::Create();
      ASSERT_TRUE(tuned.ok()) << tuned.status();
      const absl::Status status =
          (*tuned)->Tune({type, c.w_halves->data(), outputs, c.padded, c.padded,
                          nullptr, c.padded, nullptr, stride, 0, add},
                         kRows, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      const std::vector<float> all = c.Run(**tuned, 0, kRows, add);
      const auto same = [&](const std::vector<float>& got, int64_t first) {
        EXPECT_EQ(std::memcmp(got.data(), all.data() + first * stride,
                              got.size() * sizeof(float)),
                  0)
            << "[" << outputs << ", " << inputs << "] rows " << first << " to "
            << first + static_cast<int64_t>(got.size()) / stride;
      };
      same(one, 0);
      same(some, 0);
      for (const int64_t count : {1, 7, 63, 64, 65, 127, 200, 256, 257, 400,
                                  512, 513, 1000, 2047, 2048, 2049}) {
        same(c.Run(**tuned, 0, count, add), 0);
        same(c.Run(**tuned, kRows - count, count, add), kRows - count);
      }
    }
  }
}

TEST_F(MatmulGpuTest, RefusesBadParameters) {
  Case c(Kind::kDecode, WeightType::kBFloat16, 16, 32, 1);
  const DecodeMatmulParams good = {WeightType::kBFloat16,
                                   c.w_halves->data(),
                                   16,
                                   32,
                                   c.x_halves->data(),
                                   false,
                                   32,
                                   32,
                                   c.x_floats->data(),
                                   16,
                                   1,
                                   false};
  const auto refused = [&](auto&& change) {
    DecodeMatmulParams params = good;
    change(params);
    return LaunchDecodeMatmul(params, nullptr) == cudaErrorInvalidValue;
  };
  using Params = DecodeMatmulParams;
  EXPECT_TRUE(refused([](Params& p) { p.type = WeightType::kFloat32; }));
  EXPECT_TRUE(refused([](Params& p) { p.inputs = 40; }));
  EXPECT_TRUE(refused([](Params& p) { p.x_cols = 33; }));
  EXPECT_TRUE(refused([](Params& p) { p.x_stride = 4; }));
  EXPECT_TRUE(refused([](Params& p) { p.rows = kDecodeMatmulMaxRows + 1; }));
  EXPECT_TRUE(refused([](Params& p) { p.norm = true; }));  // of halves
  EXPECT_TRUE(refused([](Params& p) {
    p.x_is_float = true;  // too few columns
    p.norm = true;
  }));
  EXPECT_TRUE(refused([](Params& p) {
    p.gate = true;
    p.add = true;
  }));
  EXPECT_TRUE(refused([](Params& p) {
    p.gate = true;
    p.outputs = 15;
  }));
  EXPECT_TRUE(refused([](Params& p) { p.y_is_half = true; }));
  EXPECT_TRUE(refused([](Params& p) {
    p.gate = true;
    p.activation = Activation::kSoftmax;
  }));
  EXPECT_TRUE(refused([](Params& p) {
    p.x_is_float = true;
    p.rows = kDecodeMatmulFloatRows + 1;
  }));
  EXPECT_TRUE(refused([](Params& p) { p.w = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.x = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.y = nullptr; }));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace recurve
