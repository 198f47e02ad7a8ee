#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/attention_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/simd_test.h"

namespace recurve {
namespace {

// {H, G, D, E}: groups of 1 to 8, odd heads, values narrower and wider than
// keys, sizes that are no multiple of a vector; norms, gates, other scales.
const AttentionTestConfig kAttentionConfigs[] = {
    {{1, 1, 8, 8}, LrpeType::kNone},
    {{3, 3, 64, 64}, LrpeType::kRotate},
    {{6, 2, 48, 64}, LrpeType::kRotate, true},
    {{5, 1, 64, 48}, LrpeType::kRotate, false, true},
    {{8, 4, 100, 100}, LrpeType::kNone, true, true},
    {{8, 1, 6, 3}, LrpeType::kRotate, false, false, 0.37},
    {{14, 2, 32, 20}, LrpeType::kRotate, true, true, 0.5},
    {{4, 1, 256, 256}, LrpeType::kRotate, true, true},
};

std::string Describe(const AttentionTestConfig& c) {
  const AttentionShape& s = c.shape;
  return testing::PrintToString(std::vector<int64_t>{
             s.num_heads, s.num_kv_heads, s.head_dim, s.value_dim}) +
         (c.position == LrpeType::kRotate ? " rotate" : " none") +
         (c.norms ? " norms" : "") + (c.gate ? " gate" : "");
}

class AttentionTest : public SimdTest {
 protected:
  // Compares rows of `out`, the whole sequence, head by head.
  static void ExpectRows(const std::vector<float>& out,
                         const AttentionTokens& tokens,
                         absl::Span<const int64_t> rows, double tolerance) {
    const int64_t heads = tokens.config.shape.num_heads;
    const int64_t dim = tokens.config.shape.value_dim;
    const std::vector<std::vector<double>> want = AttentionOracle(tokens, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        ASSERT_TRUE(RelativelyNear(
            {out.data() + (rows[i] * heads + h) * dim,
             static_cast<size_t>(dim)},
            absl::MakeConstSpan(want[i]).subspan(h * dim, dim), tolerance))
            << "row " << rows[i] << " of " << tokens.length << " head " << h;
      }
    }
  }

  static std::vector<float> Whole(const AttentionTokens& tokens,
                                  int threads = 1) {
    ThreadPool pool(threads);
    AttentionTestCache cache({&tokens});
    return cache.Run({tokens.length}, pool);
  }
};

TEST_P(AttentionTest, MatchesFloat64AtEveryLength) {
  for (const AttentionTestConfig& config : kAttentionConfigs) {
    SCOPED_TRACE(Describe(config));
    for (int64_t length : {1, 2, 63, 64, 65, 127, 128, 129}) {
      const AttentionTokens tokens(config, length, length);
      ExpectRows(Whole(tokens), tokens, {0, length / 2, length - 1}, 5e-6);
    }
  }
}

TEST_P(AttentionTest, MatchesFloat64AtManyPages) {
  for (const AttentionTestConfig& config :
       {kAttentionConfigs[1], kAttentionConfigs[6]}) {
    SCOPED_TRACE(Describe(config));
    const AttentionTokens tokens(config, 640, 1);
    ExpectRows(Whole(tokens), tokens, {575, 576, 639}, 5e-6);
  }
}

// Log-sum-exps of pages that differ by a lot, growing or falling: a merge that
// mixes up maxima or weights shows.
TEST_P(AttentionTest, RampedScores) {
  for (AttentionTestConfig config :
       {kAttentionConfigs[0],
        AttentionTestConfig{{10, 2, 48, 40}, LrpeType::kNone, false, true}}) {
    for (int64_t length : {65, 640}) {
      for (const auto& [from, to] :
           {std::pair(0.0, 60.0), std::pair(60.0, 0.0), std::pair(0.0, 6.0),
            std::pair(-300.0, 300.0), std::pair(300.0, -300.0)}) {
        SCOPED_TRACE(testing::Message()
                     << Describe(config) << " length " << length << " ramp "
                     << from << " to " << to);
        AttentionTokens tokens(config, length, 3);
        tokens.Ramp(from, to);
        // A float32 score of size s is off by about s · 6e-8, and so is,
        // relatively, a weight.
        const double tolerance = 5e-6 + 5e-7 * std::max(std::abs(from), to);
        ExpectRows(Whole(tokens), tokens, {0, 63, 64, length - 1}, tolerance);
      }
    }
  }
}

// Scores that float32 holds exactly, so that the softmax must be right to the
// last digits whatever their size.
TEST_P(AttentionTest, ExtremeScores) {
  const AttentionTestConfig config = {
      {2, 1, 64, 4}, LrpeType::kNone, false, false, 0.125};
  AttentionTokens tokens(config, 200, 5);
  for (int64_t t = 0; t < tokens.length; ++t) {
    float* row = tokens.Row(t);
    std::fill_n(row + tokens.q, 2 * 64, 0.0f);
    row[tokens.q] = row[tokens.q + 64] = 8.0f;  // 1 / scale
    // Now k[0] is the score: pages at -1e4, 0 and 1e4, ties and steps of 1.
    row[tokens.k] = static_cast<float>(t < 64 ? -10000 : t < 128 ? 0 : 10000);
    row[tokens.k] -= static_cast<float>(t % 3);
  }
  const std::vector<int64_t> rows = {0, 1, 63, 64, 100, 127, 128, 129, 199};
  ExpectRows(Whole(tokens), tokens, rows, 2e-6);
  for (int64_t t = 0; t < tokens.length; ++t) {
    tokens.Row(t)[tokens.k] *= -1.0f;  // the largest come first
  }
  ExpectRows(Whole(tokens), tokens, rows, 2e-6);
}

TEST_P(AttentionTest, LargeRandomKeysStayFinite) {
  AttentionTokens tokens(kAttentionConfigs[1], 130, 6);
  for (int64_t t = 0; t < tokens.length; ++t) {
    for (int64_t i = tokens.k; i < tokens.v; ++i) tokens.Row(t)[i] *= 1e4f;
  }
  for (float value : Whole(tokens)) ASSERT_TRUE(std::isfinite(value));
}

// Each query head must read its own kv head: with values that are all g, the
// result is g.
TEST_P(AttentionTest, HeadsReadTheirGroup) {
  for (const AttentionTestConfig& of : kAttentionConfigs) {
    AttentionTestConfig config = of;
    config.gate = false;
    SCOPED_TRACE(Describe(config));
    const AttentionShape& s = config.shape;
    AttentionTokens tokens(config, 70, 9);
    for (int64_t t = 0; t < tokens.length; ++t) {
      for (int64_t i = 0; i < s.num_kv_heads * s.value_dim; ++i) {
        const int64_t head = i / s.value_dim;
        tokens.Row(t)[tokens.v + i] = static_cast<float>(head + 1);
      }
    }
    const std::vector<float> out = Whole(tokens);
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t head = static_cast<int64_t>(i) / s.value_dim % s.num_heads;
      const int64_t kv_head = head / (s.num_heads / s.num_kv_heads);
      const float want = static_cast<float>(kv_head + 1);
      ASSERT_NEAR(out[i], want, 1e-5f * want) << i;
    }
  }
}

TEST_P(AttentionTest, RowsOfNoTokensGiveZeros) {
  for (const AttentionTestConfig& config :
       {kAttentionConfigs[0], kAttentionConfigs[7]}) {
    ThreadPool pool(2);
    const AttentionTokens tokens(config, 65, 16);
    AttentionTestCache cache({&tokens, &tokens});
    const std::vector<float> out = cache.Attend({{0, -1}, {1, -1}}, pool);
    EXPECT_TRUE(SameBits(out, std::vector<float>(out.size(), 0.0f)));
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnCutsOrThreads) {
  for (const AttentionTestConfig& config : kAttentionConfigs) {
    SCOPED_TRACE(Describe(config));
    const AttentionTokens tokens(config, 150, 7);
    const std::vector<float> want = Whole(tokens);
    for (int threads : {2, 3}) {
      EXPECT_TRUE(SameBits(Whole(tokens, threads), want));
    }
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>(150, 1), std::vector<int64_t>{1, 63, 64, 22},
          std::vector<int64_t>{64, 64, 22}, std::vector<int64_t>{75, 75},
          std::vector<int64_t>{149, 1}, std::vector<int64_t>{13, 52, 80, 5}}) {
      ThreadPool pool(2);
      AttentionTestCache cache({&tokens});
      EXPECT_TRUE(SameBits(cache.Run(cuts, pool), want))
          << testing::PrintToString(cuts);
    }
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnTheBatch) {
  const AttentionTestConfig& config = kAttentionConfigs[6];
  const AttentionTokens a(config, 140, 8);
  const AttentionTokens b(config, 66, 9);
  const AttentionTokens c(config, 1, 10);
  const std::vector<const AttentionTokens*> sequences = {&a, &b, &c};
  const std::vector<std::vector<float>> alone = {Whole(a), Whole(b), Whole(c)};
  const int64_t width = config.shape.num_heads * config.shape.value_dim;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    AttentionTestCache cache(sequences);
    std::vector<int64_t> done(3, 0);
    // Prefills of several sizes next to decodes, whose rows take turns.
    for (const std::vector<int64_t>& take :
         {std::vector<int64_t>{70, 1, 0}, std::vector<int64_t>{1, 64, 1},
          std::vector<int64_t>{69, 1, 0}}) {
      std::vector<AttentionRow> rows;
      for (int64_t i = 0; i < 70; ++i) {
        for (int64_t s : {2, 0, 1}) {
          if (i < take[s]) rows.push_back({s, done[s]++});
        }
      }
      const std::vector<float> out = cache.Step(rows, pool);
      for (size_t r = 0; r < rows.size(); ++r) {
        const float* want =
            alone[rows[r].sequence].data() + rows[r].position * width;
        ASSERT_TRUE(
            SameBits({out.data() + r * width, static_cast<size_t>(width)},
                     {want, static_cast<size_t>(width)}))
            << "sequence " << rows[r].sequence << " position "
            << rows[r].position;
      }
    }
    EXPECT_EQ(done, (std::vector<int64_t>{140, 66, 1}));
  }
}

// A row must not see those that its own step appended after it: with NaN in all
// of them it could not but show.
TEST_P(AttentionTest, LaterTokensOfTheStepAreNotSeen) {
  for (int64_t poisoned : {1, 40, 64, 100}) {
    const AttentionTokens tokens(kAttentionConfigs[1], 130, 11);
    AttentionTokens bad = tokens;
    for (int64_t t = poisoned; t < bad.length; ++t) {
      std::fill(bad.Row(t) + bad.k, bad.Row(t) + bad.stride, kNaN);
    }
    const std::vector<float> want = Whole(tokens);
    const std::vector<float> got = Whole(bad);
    const size_t seen = poisoned * 3 * 64;
    EXPECT_TRUE(SameBits({got.data(), seen}, {want.data(), seen}));
    for (size_t i = seen; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
  }
}

TEST_P(AttentionTest, AppendWritesItsTokensAndNothingElse) {
  for (const AttentionTestConfig& config :
       {kAttentionConfigs[1], kAttentionConfigs[6]}) {
    SCOPED_TRACE(Describe(config));
    const AttentionShape& shape = config.shape;
    const AttentionPageLayout layout(shape);
    ThreadPool pool(2);
    const AttentionTokens tokens(config, 70, 12);
    const AttentionTokens other(config, 3, 13);
    AttentionTestCache cache({&tokens, &other});
    std::vector<float> want = cache.pages();
    std::vector<AttentionRow> rows;
    for (int64_t t = 0; t < tokens.length; ++t) rows.push_back({0, t});
    cache.Step(rows, pool);
    for (int64_t t = 0; t < tokens.length; ++t) {
      const int64_t page =
          cache.page_of(0, t / kAttentionPageTokens) * cache.page_stride();
      const int64_t m = t % kAttentionPageTokens;
      for (int64_t g = 0; g < shape.num_kv_heads; ++g) {
        const float* v = tokens.Row(t) + tokens.v + g * shape.value_dim;
        std::copy_n(v, shape.value_dim,
                    want.begin() + page + layout.V(m, g, 0));
        // Keys carry their position: near the oracle, then taken as they are.
        const int64_t at = page + layout.K(m, g, 0);
        const absl::Span<const float> got =
            absl::MakeConstSpan(cache.pages()).subspan(at, shape.head_dim);
        EXPECT_TRUE(
            RelativelyNear(got, AttentionKeyOracle(tokens, t, g), 5e-7));
        std::copy(got.begin(), got.end(), want.begin() + at);
      }
    }
    EXPECT_TRUE(SameBits(cache.pages(), want));
  }
}

TEST_P(AttentionTest, AppendingTwiceIsHarmless) {
  ThreadPool pool(1);
  const AttentionTokens tokens(kAttentionConfigs[2], 70, 14);
  AttentionTestCache cache({&tokens});
  const std::vector<float> first = cache.Run({70}, pool);
  const std::vector<float> pages = cache.pages();
  EXPECT_TRUE(SameBits(cache.Run({69, 1}, pool), first));
  EXPECT_TRUE(SameBits(cache.pages(), pages));
}

TEST_P(AttentionTest, NoRows) {
  ThreadPool pool(2);
  const AttentionTokens tokens(kAttentionConfigs[0], 1, 15);
  AttentionTestCache cache({&tokens});
  EXPECT_TRUE(cache.Step({}, pool).empty());
  for (float value : cache.pages()) ASSERT_TRUE(std::isnan(value));
}

RECURVE_INSTANTIATE_SIMD_TEST(AttentionTest);

}  // namespace
}  // namespace recurve
