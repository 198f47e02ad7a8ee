// SampleRow against its header's definition, done by full sorts and in float64
// throughout.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sampling/sampling_weight.h"
#include "tests/kernels/sampling_testing.h"

namespace recurve {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Oracle {
  int32_t token = 0;
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;
  // A rounding error could have decided the draw or a truncation.
  bool borderline = false;
};

std::vector<double> AdjustedByOracle(const Case& c) {
  std::vector<double> adjusted;
  for (int32_t id = 0; id < static_cast<int32_t>(c.logits.size()); ++id) {
    float l = c.logits[id];
    const auto in_prompt = std::count(c.prompt.begin(), c.prompt.end(), id);
    const auto in_output = std::count(c.output.begin(), c.output.end(), id);
    if (in_prompt + in_output > 0) {
      const float penalty = c.params.repetition_penalty;
      l = l > 0 ? l / penalty : l * penalty;
    }
    if (in_output > 0) l = l - c.params.presence_penalty;
    l = l - c.params.frequency_penalty * static_cast<float>(in_output);
    for (const auto& [biased, bias] : c.params.logit_bias) {
      if (biased == id) l = l + bias;
    }
    adjusted.push_back(l);
  }
  return adjusted;
}

Oracle SampleByOracle(const Case& c) {
  const std::vector<double> l = AdjustedByOracle(c);
  std::vector<int32_t> rank;
  for (int32_t id = 0; id < static_cast<int32_t>(l.size()); ++id) {
    if (l[id] > -std::numeric_limits<double>::infinity()) rank.push_back(id);
  }
  std::stable_sort(rank.begin(), rank.end(),
                   [&](int32_t a, int32_t b) { return l[a] > l[b]; });
  const double max = l[rank[0]];
  Oracle oracle;
  double sum = 0;
  for (double x : l) sum += std::exp(x - max);
  const auto logprob = [&](int32_t id) { return l[id] - max - std::log(sum); };
  for (int32_t i = 0; i < c.params.num_logprobs; ++i) {
    if (i == static_cast<int32_t>(rank.size())) break;
    oracle.top.emplace_back(rank[i], logprob(rank[i]));
  }
  oracle.token = rank[0];
  if (c.params.temperature > 0) {
    const auto weight = [&](int32_t id) {
      return std::exp((l[id] - max) / c.params.temperature);
    };
    std::vector<int32_t> kept = rank;
    if (c.params.top_k > 0 && kept.size() > c.params.top_k) {
      kept.resize(c.params.top_k);
    }
    double total = 0;
    for (int32_t id : kept) total += weight(id);
    if (c.params.top_p < 1) {
      double cumulative = 0;
      size_t n = 0;
      while (n < kept.size() && cumulative < c.params.top_p * total) {
        cumulative += weight(kept[n++]);
        if (std::abs(cumulative - c.params.top_p * total) < 1e-12 * total) {
          oracle.borderline = true;
        }
      }
      kept.resize(std::max<size_t>(n, 1));
    }
    while (weight(kept.back()) < c.params.min_p) kept.pop_back();
    std::sort(kept.begin(), kept.end());
    total = 0;
    for (int32_t id : kept) total += weight(id);
    const double target = UniformOf(c) * total;
    double cumulative = 0;
    oracle.token = -1;
    for (int32_t id : kept) {
      cumulative += weight(id);
      if (std::abs(cumulative - target) < 1e-12 * total) {
        oracle.borderline = true;
      }
      if (oracle.token < 0 && cumulative > target) oracle.token = id;
    }
  }
  oracle.logprob = logprob(oracle.token);
  return oracle;
}

TEST(SamplingOracleTest, AgreesWithTheOracleOnRandomRows) {
  std::mt19937_64 random(20240611);
  SamplingScratch scratch;  // one for all: its history must not matter
  int borderline = 0;
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    const Case c = RandomCase(random);
    const auto result = SampleRow(c.input(), &scratch);
    ASSERT_TRUE(result.ok()) << result.status();
    const Oracle oracle = SampleByOracle(c);
    if (oracle.borderline) {
      ++borderline;
      continue;
    }
    ASSERT_EQ(result->token, oracle.token);
    if (c.params.num_logprobs < 0) {
      ASSERT_EQ(result->logprob, 0);
    } else {
      const double tolerance = 1e-6 * (1 + std::abs(oracle.logprob));
      ASSERT_NEAR(result->logprob, oracle.logprob, tolerance);
    }
    ASSERT_EQ(result->top.size(), oracle.top.size());
    for (size_t i = 0; i < oracle.top.size(); ++i) {
      ASSERT_EQ(result->top[i].first, oracle.top[i].first) << i;
      ASSERT_NEAR(result->top[i].second, oracle.top[i].second,
                  1e-6 * (1 + std::abs(oracle.top[i].second)));
    }
  }
  EXPECT_LT(borderline, 40);
}

TEST(SamplingOracleTest, WeightsAreExponentials) {
  constexpr double kTable[] = RECURVE_SAMPLE_EXP_TABLE;
  EXPECT_EQ(SampleExp(0, kTable), 1);
  EXPECT_EQ(SampleExp(-kInf, kTable), 0);
  EXPECT_EQ(SampleExp(std::numeric_limits<double>::quiet_NaN(), kTable), 0);
  EXPECT_EQ(SampleFixed(1), uint64_t{1} << kSampleWeightBits);
  EXPECT_EQ(SampleFixed(std::exp(kSampleExpMin)), 0u);
  for (int i = 0; i < 29000; ++i) {
    const double x = i * -1e-3;
    ASSERT_NEAR(SampleExp(x, kTable) / std::exp(x), 1, 0x1p-47) << x;
  }
}

}  // namespace
}  // namespace recurve
