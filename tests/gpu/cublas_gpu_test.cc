// Products by cuBLASLt, likewise: its algorithms are chosen so that a row's
// result does not depend on the number of rows.

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/matmul/cublas_matmul.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/matmul_fixture.h"

namespace recurve {
namespace matmul_testing {
namespace {

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

}  // namespace
}  // namespace matmul_testing
}  // namespace recurve
