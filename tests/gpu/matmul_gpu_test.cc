// Products with weights on the GPU against float64, and bit for bit: a row's
// result is the same alone and in any batch.

#include <cstdint>
#include <cstring>
#include <iterator>
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
#include "tests/gpu/matmul_fixture.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace matmul_testing {
namespace {

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
}  // namespace matmul_testing
}  // namespace recurve
