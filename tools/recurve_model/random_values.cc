#include "tools/recurve_model/random_values.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "engine/checkpoint/fingerprint.h"

namespace recurve {
namespace {

// Written as they lie in memory.
static_assert(std::endian::native == std::endian::little);

// Mean and deviation of a sum of eight integers, uniform in [0, 65535].
constexpr int64_t kSumMean = 8 * 65535 / 2;
constexpr double kSumDeviation = 53510.0;  // sqrt(8 · (65536² − 1) / 12)

}  // namespace

RandomValues::RandomValues(uint64_t seed, absl::string_view name, double mean,
                           double deviation)
    : seed_(seed), mean_(mean), scale_(deviation / kSumDeviation) {
  Fingerprinter hash;
  hash.AddBytes(name);
  stream_ = hash.Value();
}

float RandomValues::Value(int64_t index) const {
  int64_t sum = 0;
  for (const uint32_t word :
       Philox4x32(seed_, static_cast<uint64_t>(index), stream_)) {
    sum += (word & 0xffffu) + (word >> 16);
  }
  return static_cast<float>(mean_ +
                            static_cast<double>(sum - kSumMean) * scale_);
}

void RandomValues::Fill(DType dtype, int64_t first, int64_t count,
                        char* out) const {
  RECURVE_CHECK(dtype != DType::kInt32);
  for (int64_t i = 0; i < count; ++i) {
    const float value = Value(first + i);
    if (dtype == DType::kFloat32) {
      std::memcpy(out + i * 4, &value, 4);
      continue;
    }
    const uint16_t bits = dtype == DType::kFloat16 ? FloatToFloat16(value)
                                                   : FloatToBFloat16(value);
    std::memcpy(out + i * 2, &bits, 2);
  }
}

}  // namespace recurve
