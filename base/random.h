#ifndef RECURVE_BASE_RANDOM_H_
#define RECURVE_BASE_RANDOM_H_

#include <array>
#include <cstdint>

namespace recurve {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): four random words from a key and a counter. A pure function of
// both: a request gets the same draws whatever runs before or alongside it.
inline std::array<uint32_t, 4> Philox4x32(uint64_t key, uint64_t counter_low,
                                          uint64_t counter_high) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter_low),
                               static_cast<uint32_t>(counter_low >> 32),
                               static_cast<uint32_t>(counter_high),
                               static_cast<uint32_t>(counter_high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The seed of the `index`-th of several sequences that one seed was given for.
// Differs from the seeds of other indices, and is not the seed itself.
inline uint64_t DeriveSeed(uint64_t seed, uint64_t index) {
  // Draws use the counter's second word for other things.
  constexpr uint64_t kOfSeeds = 0x5EED;
  const auto words = Philox4x32(seed, index, kOfSeeds);
  return (uint64_t{words[0]} << 32) | words[1];
}

// Uniform in [0, 1) with 24 bits, so that it is exact in float32.
inline float UniformFloat(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

}  // namespace recurve

#endif  // RECURVE_BASE_RANDOM_H_
