#ifndef RECURVE_TESTS_KERNELS_SAMPLING_TESTING_H_
#define RECURVE_TESTS_KERNELS_SAMPLING_TESTING_H_

// A row with its request, and short ways to sample from it.

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "kernels/sampling/sampling.h"

namespace recurve {

struct Case {
  std::vector<float> logits;
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;
  uint64_t index = 0;
  SamplingParams params;

  SampleInput input() const { return {logits, prompt, output, index, &params}; }
};

inline absl::StatusOr<SampleResult> Sample(const Case& c) {
  SamplingScratch scratch;
  return SampleRow(c.input(), &scratch);
}

inline int32_t TokenOf(const Case& c) {
  const auto result = Sample(c);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->token : -1;
}

// Every token that 4000 draws produce, with its share.
inline std::map<int32_t, double> Shares(Case c) {
  constexpr int kDraws = 4000;
  std::map<int32_t, double> shares;
  SamplingScratch scratch;
  for (c.index = 0; c.index < kDraws; ++c.index) {
    const auto result = SampleRow(c.input(), &scratch);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) break;
    shares[result->token] += 1.0 / kDraws;
  }
  return shares;
}

inline std::set<int32_t> Support(const Case& c) {
  std::set<int32_t> support;
  for (const auto& [id, share] : Shares(c)) support.insert(id);
  return support;
}

// The u of the draw.
inline double UniformOf(const Case& c) {
  const auto words = Philox4x32(c.params.seed, c.index, 0);
  return (words[0] * 0x1p21 + (words[1] >> 11)) * 0x1p-53;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_SAMPLING_TESTING_H_
