#include "tools/recurve_model/random_values.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace recurve {
namespace {

// Values are written in memory order.
static_assert(std::endian::native == std::endian::little);

// Mean and deviation of a sum of eight integers, uniform in [0, 65535].
constexpr int64_t kSumMean = 8 * 65535 / 2;
constexpr double kSumDeviation = 53510.0;  // sqrt(8 · (65536² − 1) / 12)

// FNV-1a of the length and the bytes, which hardly mixes its last bytes, then
// the finaliser of splitmix64, which does. All tensor values depend on it, so
// it must not change.
uint64_t HashOfName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](uint64_t byte) {
    hash = (hash ^ (byte & 0xff)) * 0x100000001b3u;
  };
  for (int shift = 0; shift < 64; shift += 8) mix(name.size() >> shift);
  for (const char byte : name) mix(static_cast<unsigned char>(byte));
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

}  // namespace

RandomValues::RandomValues(uint64_t seed, absl::string_view name, double mean,
                           double deviation)
    : seed_(seed),
      stream_(HashOfName(name)),
      mean_(mean),
      scale_(deviation / kSumDeviation) {}

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
