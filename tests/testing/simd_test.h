#ifndef RECURVE_TESTS_TESTING_SIMD_TEST_H_
#define RECURVE_TESTS_TESTING_SIMD_TEST_H_

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

// clang-format off
#include "kernels/common/simd_targets.h"
#include "hwy/highway.h"
// clang-format on

namespace recurve {

// A test that runs once for each instruction set that was compiled and that
// this machine supports, not only for the best one.
class SimdTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  // Whether the instruction set has fused multiply-add.
  static bool HasFma() {
    int64_t without = HWY_SCALAR | HWY_EMU128 | HWY_SSSE3 | HWY_SSE4;
#ifdef HWY_SSE2  // newer Highway
    without |= HWY_SSE2;
#endif
    return (GetParam() & without) == 0;
  }
};

inline std::string SimdTestName(const testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

// For the test suite `suite`, a class derived from SimdTest.
#define RECURVE_INSTANTIATE_SIMD_TEST(suite)                               \
  INSTANTIATE_TEST_SUITE_P(                                                \
      Simd, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
      SimdTestName)

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_SIMD_TEST_H_
