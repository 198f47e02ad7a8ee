#include "kernels/tpa/tpa.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/kernels/tpa_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/simd_test.h"

namespace recurve {
namespace {

// {H, D, E, Rq, R}: every rank, odd heads, values narrower and wider than keys,
// sizes that are no multiple of a vector; whole queries (Rq 0), activations.
const TpaTestConfig kConfigs[] = {
    {{1, 8, 8, 1, 1}, LrpeType::kNone},
    {{3, 48, 64, 6, 2}, LrpeType::kRotate},
    {{5, 64, 48, 16, 3}, LrpeType::kRotate},
    {{4, 100, 100, 6, 4}, LrpeType::kNone},
    {{2, 64, 100, 1, 2}, LrpeType::kRotate},
    {{5, 8, 3, 6, 1}, LrpeType::kRotate},
    {{5, 48, 32, 0, 2}, LrpeType::kRotate},
    {{3, 32, 32, 4, 3}, LrpeType::kRotate, 10000.0, Activation::kSigmoid},
};

std::string Describe(const TpaTestConfig& c) {
  const TpaShape& s = c.shape;
  return testing::PrintToString(std::vector<int64_t>{
             s.num_heads, s.head_dim, s.value_dim, s.q_rank, s.kv_rank}) +
         (c.position == LrpeType::kRotate ? " rotate" : " none");
}

class TpaTest : public SimdTest {
 protected:
  // Compares rows of `out`, the whole sequence, head by head.
  static void ExpectRows(const std::vector<float>& out, const TpaTokens& tokens,
                         absl::Span<const int64_t> rows, double tolerance) {
    const int64_t heads = tokens.config.shape.num_heads;
    const int64_t dim = tokens.config.shape.value_dim;
    const std::vector<std::vector<double>> want = TpaOracle(tokens, rows);
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

  static std::vector<float> Whole(const TpaTokens& tokens, int threads = 1) {
    ThreadPool pool(threads);
    TpaTestCache cache({&tokens});
    return cache.Run({tokens.length}, pool);
  }
};

TEST_P(TpaTest, MatchesFloat64AtEveryLength) {
  for (const TpaTestConfig& config : kConfigs) {
    SCOPED_TRACE(Describe(config));
    for (int64_t length : {1, 2, 63, 64, 65, 127, 128, 129}) {
      const TpaTokens tokens(config, length, length);
      ExpectRows(Whole(tokens), tokens, {0, length / 2, length - 1}, 5e-6);
    }
  }
}

TEST_P(TpaTest, MatchesFloat64AtManyPages) {
  for (const TpaTestConfig& config : {kConfigs[1], kConfigs[5]}) {
    SCOPED_TRACE(Describe(config));
    const TpaTokens tokens(config, 640, 1);
    ExpectRows(Whole(tokens), tokens, {575, 576, 639}, 5e-6);
  }
}

// Log-sum-exps of pages that differ by a lot, growing or falling: a merge that
// mixes up maxima or weights shows.
TEST_P(TpaTest, RampedScores) {
  for (TpaTestConfig config : {kConfigs[0], kConfigs[3]}) {
    for (int64_t length : {65, 640}) {
      for (const auto& [from, to] :
           {std::pair(0.0, 60.0), std::pair(60.0, 0.0), std::pair(0.0, 6.0),
            std::pair(-300.0, 300.0), std::pair(300.0, -300.0)}) {
        SCOPED_TRACE(testing::Message()
                     << Describe(config) << " length " << length << " ramp "
                     << from << " to " << to);
        TpaTokens tokens(config, length, 3);
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
TEST_P(TpaTest, ExtremeScores) {
  const TpaTestConfig config = {{1, 64, 4, 1, 1}, LrpeType::kNone};
  TpaTokens tokens(config, 200, 5);
  for (int64_t t = 0; t < tokens.length; ++t) {
    float* row = tokens.Row(t);
    row[tokens.a_q] = row[tokens.a_k] = 1.0f;
    std::fill_n(row + tokens.b_q, 64, 0.0f);
    row[tokens.b_q] = 8.0f;  // the square root of D
    // Now b_k[0] is the score: pages at -1e4, 0 and 1e4, ties and steps of 1.
    row[tokens.b_k] = static_cast<float>(t < 64 ? -10000 : t < 128 ? 0 : 10000);
    row[tokens.b_k] -= static_cast<float>(t % 3);
  }
  const std::vector<int64_t> rows = {0, 1, 63, 64, 100, 127, 128, 129, 199};
  ExpectRows(Whole(tokens), tokens, rows, 2e-6);
  for (int64_t t = 0; t < tokens.length; ++t) {
    tokens.Row(t)[tokens.b_k] *= -1.0f;  // the largest come first
  }
  ExpectRows(Whole(tokens), tokens, rows, 2e-6);
}

TEST_P(TpaTest, LargeRandomFactorsStayFinite) {
  TpaTokens tokens(kConfigs[1], 130, 6);
  for (int64_t t = 0; t < tokens.length; ++t) {
    for (int64_t i = tokens.b_k; i < tokens.a_v; ++i) tokens.Row(t)[i] *= 1e4f;
  }
  for (float value : Whole(tokens)) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(TpaTest, BitsDoNotDependOnCutsOrThreads) {
  for (const TpaTestConfig& config : kConfigs) {
    SCOPED_TRACE(Describe(config));
    const TpaTokens tokens(config, 150, 7);
    const std::vector<float> want = Whole(tokens);
    for (int threads : {2, 3}) {
      EXPECT_TRUE(SameBits(Whole(tokens, threads), want));
    }
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>(150, 1), std::vector<int64_t>{1, 63, 64, 22},
          std::vector<int64_t>{64, 64, 22}, std::vector<int64_t>{75, 75},
          std::vector<int64_t>{149, 1}, std::vector<int64_t>{13, 52, 80, 5}}) {
      ThreadPool pool(2);
      TpaTestCache cache({&tokens});
      EXPECT_TRUE(SameBits(cache.Run(cuts, pool), want))
          << testing::PrintToString(cuts);
    }
  }
}

TEST_P(TpaTest, BitsDoNotDependOnTheBatch) {
  const TpaTestConfig& config = kConfigs[1];
  const TpaTokens a(config, 140, 8);
  const TpaTokens b(config, 66, 9);
  const TpaTokens c(config, 1, 10);
  const std::vector<const TpaTokens*> sequences = {&a, &b, &c};
  const std::vector<std::vector<float>> alone = {Whole(a), Whole(b), Whole(c)};
  const int64_t width = config.shape.num_heads * config.shape.value_dim;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    TpaTestCache cache(sequences);
    std::vector<int64_t> done(3, 0);
    // Prefills of several sizes next to decodes, whose rows take turns.
    for (const std::vector<int64_t>& take :
         {std::vector<int64_t>{70, 1, 0}, std::vector<int64_t>{1, 64, 1},
          std::vector<int64_t>{69, 1, 0}}) {
      std::vector<TpaRow> rows;
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
TEST_P(TpaTest, LaterTokensOfTheStepAreNotSeen) {
  for (int64_t poisoned : {1, 40, 64, 100}) {
    const TpaTokens tokens(kConfigs[1], 130, 11);
    TpaTokens bad = tokens;
    for (int64_t t = poisoned; t < bad.length; ++t) {
      std::fill(bad.Row(t) + bad.a_k, bad.Row(t) + bad.stride, kNaN);
    }
    const std::vector<float> want = Whole(tokens);
    const std::vector<float> got = Whole(bad);
    const size_t seen = poisoned * 3 * 64;
    EXPECT_TRUE(SameBits({got.data(), seen}, {want.data(), seen}));
    for (size_t i = seen; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
  }
}

TEST_P(TpaTest, AppendWritesItsTokensAndNothingElse) {
  const TpaTestConfig& config = kConfigs[1];
  const TpaShape& shape = config.shape;
  const TpaPageLayout layout(shape);
  ThreadPool pool(2);
  const TpaTokens tokens(config, 70, 12);
  const TpaTokens other(config, 3, 13);
  TpaTestCache cache({&tokens, &other});
  std::vector<float> want = cache.pages();
  const auto expect_run = [&](int64_t at, const float* values, int64_t n) {
    std::copy(values, values + n, want.begin() + at);
  };
  std::vector<TpaRow> rows;
  for (int64_t t = 0; t < tokens.length; ++t) rows.push_back({0, t});
  cache.Step(rows, pool);
  for (int64_t t = 0; t < tokens.length; ++t) {
    const int64_t page =
        cache.page_of(0, t / kTpaPageTokens) * cache.page_stride();
    const int64_t m = t % kTpaPageTokens;
    const float* row = tokens.Row(t);
    for (int64_t r = 0; r < shape.kv_rank; ++r) {
      expect_run(page + layout.AK(m, r, 0),
                 row + tokens.a_k + r * shape.num_heads, shape.num_heads);
      expect_run(page + layout.AV(m, r, 0),
                 row + tokens.a_v + r * shape.num_heads, shape.num_heads);
      expect_run(page + layout.BV(m, r, 0),
                 row + tokens.b_v + r * shape.value_dim, shape.value_dim);
      // B_k carries its position: near the oracle, then taken as it is.
      const int64_t b_k = page + layout.BK(m, r, 0);
      const float* x = row + tokens.b_k + r * shape.head_dim;
      const absl::Span<const float> got =
          absl::MakeConstSpan(cache.pages()).subspan(b_k, shape.head_dim);
      EXPECT_TRUE(
          RelativelyNear(got,
                         LrpeOracle(config.position,
                                    std::vector<double>(x, x + shape.head_dim),
                                    t, config.base),
                         3e-7));
      expect_run(b_k, got.data(), shape.head_dim);
    }
  }
  EXPECT_TRUE(SameBits(cache.pages(), want));
}

TEST_P(TpaTest, AppendingTwiceIsHarmless) {
  ThreadPool pool(1);
  const TpaTokens tokens(kConfigs[2], 70, 14);
  TpaTestCache cache({&tokens});
  const std::vector<float> first = cache.Run({70}, pool);
  const std::vector<float> pages = cache.pages();
  EXPECT_TRUE(SameBits(cache.Run({69, 1}, pool), first));
  EXPECT_TRUE(SameBits(cache.pages(), pages));
}

TEST_P(TpaTest, NoRows) {
  ThreadPool pool(2);
  const TpaTokens tokens(kConfigs[0], 1, 15);
  TpaTestCache cache({&tokens});
  EXPECT_TRUE(cache.Step({}, pool).empty());
  for (float value : cache.pages()) ASSERT_TRUE(std::isnan(value));
}

RECURVE_INSTANTIATE_SIMD_TEST(TpaTest);

}  // namespace
}  // namespace recurve
