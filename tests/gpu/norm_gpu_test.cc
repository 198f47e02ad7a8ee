// GPU kernels against the CPU's, which the other tests hold against float64.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_cuda.h"

namespace recurve {
namespace {

// Managed by hand: the test must not hide a kernel that allocates.
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<float>& host) : size_(host.size()) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, size_ * sizeof(float)), cudaSuccess);
    data_ = static_cast<float*>(memory);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(float),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~DeviceVector() { cudaFree(data_); }
  float* data() { return data_; }
  std::vector<float> Read() const {
    std::vector<float> host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_ * sizeof(float),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  float* data_ = nullptr;
  size_t size_;
};

std::vector<float> RandomVector(uint64_t seed, size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = 4.0f * UniformFloat(Philox4x32(seed, i, 0)[0]) - 2.0f;
  }
  return values;
}

struct Shape {
  int64_t rows, cols, groups;
};

class RmsNormGpuTest : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
  }
};

TEST_P(RmsNormGpuTest, MatchesTheCpuAndTheRowAlone) {
  const auto [rows, cols, groups] = GetParam();
  const int64_t stride = cols + 3;  // the gap must stay untouched
  const auto x = RandomVector(1, rows * stride);
  const auto weight = RandomVector(2, cols);
  std::vector<float> expected(rows * stride, 7.0f);
  ThreadPool pool(1);
  RmsNorm({x.data(), stride, weight.data(), expected.data(), stride, rows, cols,
           groups, 1e-5f},
          pool);

  DeviceVector device_x(x);
  DeviceVector device_weight(weight);
  DeviceVector device_y(std::vector<float>(rows * stride, 7.0f));
  RmsNormParams params = {device_x.data(),
                          stride,
                          device_weight.data(),
                          device_y.data(),
                          stride,
                          rows,
                          cols,
                          groups,
                          1e-5f};
  ASSERT_EQ(LaunchRmsNorm(params, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<float> actual = device_y.Read();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 2e-6f * std::fabs(expected[i]) + 1e-7f)
        << i;
  }

  // The last row alone gives the same bits.
  if (rows < 2) return;
  DeviceVector alone(std::vector<float>(stride, 7.0f));
  params.x += (rows - 1) * stride;
  params.y = alone.data();
  params.rows = 1;
  ASSERT_EQ(LaunchRmsNorm(params, nullptr), cudaSuccess);
  const std::vector<float> row = alone.Read();
  EXPECT_EQ(std::memcmp(row.data(), actual.data() + (rows - 1) * stride,
                        cols * sizeof(float)),
            0);
}

TEST_P(RmsNormGpuTest, RefusesBadSizes) {
  RmsNormParams params = {};
  params.rows = 1;
  params.cols = 7;
  params.groups = 2;
  EXPECT_EQ(LaunchRmsNorm(params, nullptr), cudaErrorInvalidValue);
  params.groups = 0;
  EXPECT_EQ(LaunchRmsNorm(params, nullptr), cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormGpuTest,
                         testing::Values(Shape{1, 1, 1}, Shape{3, 255, 1},
                                         Shape{7, 256, 4}, Shape{2, 257, 1},
                                         Shape{33, 1600, 1},
                                         Shape{5, 4992, 78}));

}  // namespace
}  // namespace recurve
