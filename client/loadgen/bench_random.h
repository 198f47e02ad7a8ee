#ifndef RECURVE_CLIENT_LOADGEN_BENCH_RANDOM_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_RANDOM_H_

#include <array>
#include <cstdint>

#include "base/random.h"

namespace recurve {

// Random draws for one purpose of a load test, e.g. request number `index`: a
// stream of random words that depends on (seed, index, part) alone. `part`
// separates streams of the same request, e.g. the turns of a conversation.
// Thread safety: none.
class BenchDraws {
 public:
  // REQUIRES: part < 2^24.
  BenchDraws(uint64_t seed, uint64_t index, uint64_t part = 0)
      : seed_(seed), index_(index), first_block_(part << 40) {}

  uint32_t Word() {
    if (next_ % 4 == 0) {
      words_ = Philox4x32(seed_, first_block_ + next_ / 4, index_);
    }
    return words_[next_++ % 4];
  }
  // Uniform in [0, count); count >= 1. The bias is at most count / 2^32, which
  // no load test can detect.
  uint32_t Below(uint32_t count) {
    return static_cast<uint32_t>((uint64_t{Word()} * count) >> 32);
  }
  // Uniform in [min, max]; min <= max.
  uint32_t In(uint32_t min, uint32_t max) {
    return min + static_cast<uint32_t>(
                     (uint64_t{Word()} * (uint64_t{max} - min + 1)) >> 32);
  }
  // Uniform in (0, 1): neither end occurs.
  double Unit() { return (Word() + 0.5) * 0x1p-32; }
  // Mean 0 and variance 1.
  double Normal();
  // Gamma distributed with shape `shape` > 0 and scale 1: mean and variance are
  // both `shape`.
  double Gamma(double shape);

 private:
  const uint64_t seed_;
  const uint64_t index_;
  const uint64_t first_block_;
  uint64_t next_ = 0;
  std::array<uint32_t, 4> words_ = {};
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_RANDOM_H_
