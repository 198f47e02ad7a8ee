#ifndef RECURVE_TESTS_TESTING_RANDOM_TENSOR_H_
#define RECURVE_TESTS_TESTING_RANDOM_TENSOR_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"

namespace recurve {

// `count` values, uniform in [low, high): a pure function of the seed, so that
// a failure repeats.
inline std::vector<float> RandomTensor(uint64_t seed, int64_t count,
                                       float low = -1.0f, float high = 1.0f) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const float u = UniformFloat(Philox4x32(seed, i, 0)[0]);
    values[i] = low + (high - low) * u;
  }
  return values;
}

// As RandomTensor, rounded to values that bfloat16 represents exactly.
inline std::vector<float> RandomBFloat16Tensor(uint64_t seed, int64_t count) {
  std::vector<float> values = RandomTensor(seed, count);
  for (float& value : values) {
    value = BFloat16ToFloat(FloatToBFloat16(value));
  }
  return values;
}

// Fills memory that a kernel must not read.
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Fills memory that a kernel must not write; SameBits detects writes.
inline constexpr float kCanary = -1234.5678f;

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_RANDOM_TENSOR_H_
