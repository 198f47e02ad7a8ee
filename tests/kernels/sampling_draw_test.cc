// Truncation and the draw.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/sampling_testing.h"

namespace recurve {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- Truncation ----

TEST(SamplingDrawTest, TopKKeepsExactlyKWithTiesBySmallerId) {
  Case c;
  c.logits = {1, 2, 2, 3, 2};
  c.params.temperature = 1;
  c.params.top_k = 1;
  EXPECT_EQ(Support(c), (std::set<int32_t>{3}));
  c.params.top_k = 2;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1, 3}));
  c.params.top_k = 3;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1, 2, 3}));
  for (int32_t all : {0, 5, 6, std::numeric_limits<int32_t>::max()}) {
    c.params.top_k = all;
    EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1, 2, 3, 4}));
  }
  // -0 and +0 tie.
  c.logits = {-0.0f, 0.0f, -0.0f};
  c.params.top_k = 2;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1}));
  // Impossible tokens do not fill up the k.
  c.logits = {-kInf, 1, -kInf, 2, -kInf};
  c.params.top_k = 4;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1, 3}));
}

TEST(SamplingDrawTest, TopKOfALongRowOfEquals) {
  Case c;
  c.logits.assign(20000, 0.5f);
  c.logits[19999] = 0.75f;
  c.params.temperature = 1;
  c.params.top_k = 3;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1, 19999}));
}

TEST(SamplingDrawTest, TopPKeepsTheShortestPrefixThatReachesIt) {
  Case c;
  c.logits = {0, 0, 0, 0};  // a quarter each, exactly
  c.params.temperature = 1;
  const std::vector<std::pair<float, size_t>> cases = {
      {1e-6f, 1}, {0.25f, 1}, {0.2501f, 2}, {0.5f, 2},
      {0.75f, 3}, {0.76f, 4}, {1.0f, 4}};
  for (const auto& [top_p, kept] : cases) {
    c.params.top_p = top_p;
    std::set<int32_t> expected;
    for (size_t id = 0; id < kept; ++id) expected.insert(id);
    EXPECT_EQ(Support(c), expected) << top_p;
  }
  // Rank, not id, orders the prefix: 0.1, 0.6, 0.3.
  c.logits = {std::log(0.1f), std::log(0.6f), std::log(0.3f)};
  c.params.top_p = 0.59f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1}));
  c.params.top_p = 0.61f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1, 2}));
  c.params.top_p = 0.91f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1, 2}));
}

TEST(SamplingDrawTest, TopPCountsWhatTopKLeft) {
  Case c;
  c.logits = {0, 0, 0, 0, 0, 0, 0, 0};
  c.params.temperature = 1;
  c.params.top_k = 4;
  c.params.top_p = 0.5f;  // of the four, not of the eight
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1}));
}

TEST(SamplingDrawTest, TopPOfAFlatRowLooksFarEnough) {
  Case c;
  c.logits.assign(4096, 1.0f);
  c.params.temperature = 1;
  c.params.top_p = 0.5f;
  const std::set<int32_t> support = Support(c);
  EXPECT_LT(*support.rbegin(), 2048);
  EXPECT_GT(*support.rbegin(), 2000);
  EXPECT_GT(support.size(), 1500u);
}

TEST(SamplingDrawTest, MinPIsRelativeToTheBestAfterTemperature) {
  Case c;
  c.logits = {0, std::log(0.5f), std::log(0.2f), std::log(0.04f)};
  c.params.temperature = 1;
  c.params.min_p = 0.25f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1}));
  c.params.min_p = 0.15f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1, 2}));
  c.params.temperature = 2;  // 1, 0.71, 0.45, 0.2
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1, 2, 3}));
  c.params.min_p = 1;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0}));
  c.params.top_p = 0.9f;  // through the ranked path
  EXPECT_EQ(Support(c), (std::set<int32_t>{0}));
  // Equals of the best are not less likely than it.
  c.logits = {0, 0, -1};
  c.params.top_p = 1;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1}));
  c.params.top_p = 0.99f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{0, 1}));
}

TEST(SamplingDrawTest, OutOfRangeTruncationStaysInBounds) {
  for (float bad : {-1.0f, 2.0f, kNan, kInf}) {
    for (int32_t top_k : {-5, 0, 2}) {
      Case c;
      c.logits = {1, 2, 3, -kInf};
      c.params.temperature = 1;
      c.params.top_k = top_k;
      c.params.min_p = bad;
      c.params.top_p = bad;
      const auto result = Sample(c);
      ASSERT_TRUE(result.ok());
      EXPECT_GE(result->token, 0);
      EXPECT_LT(result->token, 4);
    }
  }
}

// ---- The draw ----

TEST(SamplingDrawTest, DrawsFollowTheDistribution) {
  struct Setting {
    float temperature;
    int32_t top_k;
    float top_p;
  };
  const std::vector<Setting> settings = {
      {1, 0, 1}, {0.5f, 0, 1}, {2, 7, 1}, {1, 0, 0.8f}, {1.5f, 8, 0.9f}};
  for (const Setting& setting : settings) {
    for (uint64_t seed : {1ull, 2ull, 0xdeadbeefcafeull}) {
      Case c;
      for (int id = 0; id < 10; ++id) c.logits.push_back(0.37f * (id * 7 % 10));
      c.params.temperature = setting.temperature;
      c.params.top_k = setting.top_k;
      c.params.top_p = setting.top_p;
      c.params.seed = seed;
      // Weights of what is kept, by the definition.
      std::vector<std::pair<double, int32_t>> ranked;
      for (int id = 0; id < 10; ++id) {
        ranked.emplace_back(std::exp(c.logits[id] / setting.temperature), id);
      }
      std::sort(ranked.rbegin(), ranked.rend());
      if (setting.top_k > 0) ranked.resize(setting.top_k);
      double total = 0;
      for (const auto& [w, id] : ranked) total += w;
      double kept = 0;
      size_t n = 0;
      while (kept < setting.top_p * total && n < ranked.size()) {
        kept += ranked[n++].first;
      }
      ranked.resize(n);
      const std::map<int32_t, double> shares = Shares(c);
      double chi_square = 0;
      double seen = 0;
      for (const auto& [w, id] : ranked) {
        const double expected = w / kept;
        const auto it = shares.find(id);
        const double share = it == shares.end() ? 0 : it->second;
        seen += share;
        chi_square += 4000 * (share - expected) * (share - expected) / expected;
      }
      EXPECT_NEAR(seen, 1, 1e-9) << "a token outside the kept ones was drawn";
      // At most 9 degrees of freedom: above 27.9 once in 1000.
      EXPECT_LT(chi_square, 27.9) << setting.temperature << " " << seed;
    }
  }
}

TEST(SamplingDrawTest, TheDrawWalksAscendingIds) {
  // Two equal tokens: u below a half takes the smaller id, in each path.
  for (int32_t top_k : {0, 2}) {
    for (uint64_t index = 0; index < 100; ++index) {
      Case c;
      c.logits = {0, 5, 0, 5};
      c.params.temperature = 0.01f;
      c.params.top_k = top_k;
      c.params.seed = 12345;
      c.index = index;
      EXPECT_EQ(TokenOf(c), UniformOf(c) < 0.5 ? 1 : 3);
    }
  }
}

TEST(SamplingDrawTest, ADrawDependsOnSeedAndIndexOnly) {
  Case c;
  std::mt19937_64 random(4);
  for (int id = 0; id < 258; ++id) {
    c.logits.push_back(static_cast<float>(random() % 1000) / 250);
  }
  c.params.temperature = 1;
  c.params.seed = 99;
  std::vector<int32_t> forward;
  for (c.index = 0; c.index < 200; ++c.index) forward.push_back(TokenOf(c));
  EXPECT_GT(std::set<int32_t>(forward.begin(), forward.end()).size(), 50u);
  SamplingScratch scratch;
  Case other;  // of another size, with penalties and another path
  other.logits.assign(700, 1);
  other.output = {3, 3, 5};
  other.params.temperature = 2;
  other.params.top_p = 0.7f;
  other.params.frequency_penalty = 1;
  for (int i = 199; i >= 0; --i) {
    ASSERT_TRUE(SampleRow(other.input(), &scratch).ok());
    c.index = i;
    EXPECT_EQ(SampleRow(c.input(), &scratch)->token, forward[i]);
  }
  c.params.seed = 100;
  std::vector<int32_t> reseeded;
  for (c.index = 0; c.index < 200; ++c.index) reseeded.push_back(TokenOf(c));
  EXPECT_NE(reseeded, forward);
}

TEST(SamplingDrawTest, TinyTemperaturesAreGreedyButForTies) {
  Case c;
  c.logits = {1, 1.5f, -1e4f, 1e4f, -kInf};
  for (float temperature : {1e-30f, std::numeric_limits<float>::denorm_min()}) {
    c.params.temperature = temperature;
    EXPECT_EQ(Support(c), (std::set<int32_t>{3}));
    c.params.top_p = 0.9f;
    EXPECT_EQ(Support(c), (std::set<int32_t>{3}));
  }
}

TEST(SamplingDrawTest, ImpossibleTokensAreNeverDrawn) {
  Case c;
  c.logits = {-kInf, 0, -kInf, 0, -kInf};
  c.params.temperature = 100;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1, 3}));
  c.params.top_p = 0.999f;
  EXPECT_EQ(Support(c), (std::set<int32_t>{1, 3}));
}

}  // namespace
}  // namespace recurve
