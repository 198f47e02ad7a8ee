#ifndef RECURVE_TESTS_KERNELS_SAMPLING_TESTING_H_
#define RECURVE_TESTS_KERNELS_SAMPLING_TESTING_H_

// A row with its request, and helpers to sample from it.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
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

// A random row of a random kind: spread, ties, extremes, holes.
inline Case RandomCase(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const auto real = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
  };
  const std::array<int, 8> sizes = {1, 2, 3, 7, 64, 258, 1500, 5000};
  Case c;
  const int vocab = sizes[below(sizes.size())];
  const float spread = std::array<float, 5>{0, 0.5f, 3, 30, 1e4f}[below(5)];
  const bool ties = below(3) == 0;
  const bool holes = below(3) == 0;
  for (int id = 0; id < vocab; ++id) {
    float l = real(-spread, spread + 1e-6f);
    if (ties) l = std::round(l);
    if (holes && id > 0 && below(2) == 0)
      l = -std::numeric_limits<float>::infinity();
    c.logits.push_back(l);
  }
  std::shuffle(c.logits.begin(), c.logits.end(), random);
  for (int n = below(20); n > 0; --n) c.prompt.push_back(below(vocab));
  for (int n = below(20); n > 0; --n) c.output.push_back(below(vocab));
  if (below(2) == 0) c.params.repetition_penalty = real(0.2f, 3);
  if (below(2) == 0) c.params.presence_penalty = real(-2, 2);
  if (below(2) == 0) c.params.frequency_penalty = real(-2, 2);
  if (below(4) != 0) c.params.temperature = real(0.01f, 3);
  if (below(2) == 0) c.params.top_p = real(0.01f, 1);
  if (below(3) == 0) c.params.min_p = real(0, 1);
  if (below(2) == 0) c.params.top_k = 1 + below(below(2) == 0 ? 10 : 3000);
  for (int n = below(4); n > 0; --n) {
    c.params.logit_bias.emplace_back(below(vocab), real(-100, 100));
  }
  c.params.num_logprobs = below(24) - 1;
  c.params.seed = random();
  c.index = below(2) == 0 ? below(1000) : random();
  return c;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_SAMPLING_TESTING_H_
