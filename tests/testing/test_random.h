#ifndef RECURVE_TESTS_TESTING_TEST_RANDOM_H_
#define RECURVE_TESTS_TESTING_TEST_RANDOM_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace recurve {

// The finaliser of splitmix64: every input bit affects every output bit.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The same numbers from the same seed with every compiler and library.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(MixBits(seed)) {}

  uint64_t Next() { return MixBits(state_++); }
  // In [low, high].
  int64_t Uniform(int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }
  std::vector<int32_t> Tokens(int64_t count, int64_t vocab_size) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<int32_t>(Uniform(0, vocab_size - 1)));
    }
    return tokens;
  }

 private:
  uint64_t state_;
};

// The number of seeds that a simulation runs: `by_default` times the
// environment variable RECURVE_SIM_SEEDS (1 if unset; e.g. 0.1 or 100). At
// least one.
inline uint64_t SimSeeds(uint64_t by_default) {
  const char* factor = std::getenv("RECURVE_SIM_SEEDS");
  if (factor == nullptr) return by_default;
  return std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(by_default) *
                               std::strtod(factor, nullptr)));
}

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_TEST_RANDOM_H_
