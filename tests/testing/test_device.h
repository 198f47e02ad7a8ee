#ifndef RECURVE_TESTS_TESTING_TEST_DEVICE_H_
#define RECURVE_TESTS_TESTING_TEST_DEVICE_H_

// The device of engine tests. The same sources are built once for the CPU and,
// with RECURVE_TEST_ON_GPU, once for the GPU.

#include "gtest/gtest.h"

#ifdef RECURVE_TEST_ON_GPU
#include "engine/cuda/cuda_device.h"
#endif

namespace recurve {

#ifdef RECURVE_TEST_ON_GPU
inline constexpr bool kTestOnGpu = true;
inline constexpr char kTestDevice[] = "cuda";
#else
inline constexpr bool kTestOnGpu = false;
inline constexpr char kTestDevice[] = "cpu";
#endif

// A test base that skips tests if the device is missing.
template <typename Base = testing::Test>
class OnTestDevice : public Base {
 protected:
  void SetUp() override {
#ifdef RECURVE_TEST_ON_GPU
    if (!FindCudaDevice().ok()) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
#endif
    Base::SetUp();
  }
};

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_TEST_DEVICE_H_
