#include "kernels/linear_attn/linear_attn.h"

#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/linear_attn_testing.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/simd_test.h"

namespace recurve {
namespace {

constexpr LrpeType kPositions[] = {LrpeType::kNone, LrpeType::kRotate,
                                   LrpeType::kCosine};
constexpr Activation kActivations[] = {
    Activation::kNone,    Activation::kSilu,       Activation::kRelu,
    Activation::kSigmoid, Activation::kOnePlusElu, Activation::kSoftmax};

// {H, D, E}
LinearTestConfig Shape(int64_t heads, int64_t head_dim, int64_t value_dim) {
  LinearTestConfig config;
  config.num_heads = heads;
  config.head_dim = head_dim;
  config.value_dim = value_dim;
  return config;
}

class LinearAttentionTest : public SimdTest {
 protected:
  static LinearResult Whole(const LinearTokens& tokens, int threads = 1) {
    ThreadPool pool(threads);
    return RunLinear({&tokens}, {{tokens.length}}, pool);
  }

  static void ExpectOracle(const LinearTokens& tokens) {
    const LinearResult got = Whole(tokens);
    LinearOracle(tokens).Expect(got.out[0], got.state[0], 1e-5);
  }

  // Cut after its whole prompt; and together with a sequence that is cut
  // likewise.
  static void ExpectCuts(const LinearTestConfig& config, int64_t whole,
                         const LinearTokens& tokens, const LinearResult& want) {
    const int64_t rest = tokens.length - whole;
    const LinearTokens other(config, tokens.length, 18);
    ThreadPool pool(2);
    LinearResult both = RunLinear({&other, &tokens},
                                  {{whole, 0}, {rest, whole}, {0, rest}}, pool);
    EXPECT_TRUE(SameBits(both.out[1], want.out[0]));
    EXPECT_TRUE(SameBits(both.state[1], want.state[0]));
    LinearOracle(other).Expect(both.out[0], both.state[0], 1e-5);
  }

  static void ExpectSame(const LinearResult& got, const LinearResult& want) {
    for (size_t b = 0; b < want.out.size(); ++b) {
      EXPECT_TRUE(SameBits(got.out[b], want.out[b])) << "sequence " << b;
      EXPECT_TRUE(SameBits(got.state[b], want.state[b])) << "sequence " << b;
    }
  }
};

TEST_P(LinearAttentionTest, MatchesFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 1, 1), std::tuple(3, 8, 1), std::tuple(2, 1, 8),
        std::tuple(5, 8, 8), std::tuple(3, 48, 64), std::tuple(2, 64, 48),
        std::tuple(1, 100, 100), std::tuple(3, 64, 100),
        std::tuple(1, 64, 130)}) {
    for (LrpeType position : kPositions) {
      if (position == LrpeType::kRotate && d % 2 != 0) continue;
      for (bool decays : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << heads << " heads " << d << " x " << e << " position "
                     << static_cast<int>(position) << " decays " << decays);
        LinearTestConfig config = Shape(heads, d, e);
        config.position = position;
        config.decays = decays;
        ExpectOracle(LinearTokens(config, 40, 1));
      }
    }
  }
}

// A whole prompt, then tokens that see what came before them, in the same step
// and in others.
TEST_P(LinearAttentionTest, WholePromptsMatchFloat64) {
  for (LrpeType position : kPositions) {
    for (int64_t whole : {1, 2, 63, 130}) {
      SCOPED_TRACE(testing::Message() << "whole " << whole << " position "
                                      << static_cast<int>(position));
      LinearTestConfig config = Shape(3, 48, 64);
      config.position = position;
      config.decays = false;
      config.whole = whole;
      const LinearTokens tokens(config, 130, 17);
      ExpectOracle(tokens);
      const LinearResult want = Whole(tokens);
      for (int threads : {2, 3}) ExpectSame(Whole(tokens, threads), want);
      ExpectCuts(config, whole, tokens, want);
    }
  }
}

// The final state may be wrong where outputs are right, and at some lengths
// only.
TEST_P(LinearAttentionTest, MatchesFloat64AtEveryLength) {
  for (int64_t length : {1, 2, 63, 64, 65, 127, 128, 129, 300}) {
    SCOPED_TRACE(length);
    LinearTestConfig config = Shape(3, 32, 24);
    config.position = LrpeType::kCosine;
    ExpectOracle(LinearTokens(config, length, 2));
    config.decays = false;
    ExpectOracle(LinearTokens(config, length, 2));
  }
}

TEST_P(LinearAttentionTest, EveryActivationOfEveryInput) {
  for (Activation activation : kActivations) {
    for (int which = 0; which < 3; ++which) {
      SCOPED_TRACE(testing::Message()
                   << "activation " << static_cast<int>(activation)
                   << " of input " << which);
      LinearTestConfig config = Shape(2, 48, 40);
      config.position = LrpeType::kRotate;
      config.q_activation = config.k_activation = Activation::kNone;
      (which == 0   ? config.q_activation
       : which == 1 ? config.k_activation
                    : config.v_activation) = activation;
      ExpectOracle(LinearTokens(config, 20, 3));
    }
  }
}

TEST_P(LinearAttentionTest, FarPositions) {
  for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
    LinearTestConfig config = Shape(1, 64, 16);
    config.position = position;
    LinearTokens tokens(config, 20, 4);
    tokens.first_position = 1'000'000;
    ExpectOracle(tokens);
  }
}

TEST_P(LinearAttentionTest, LargeInputsStayFinite) {
  for (Activation activation : kActivations) {
    LinearTestConfig config = Shape(2, 16, 16);
    config.q_activation = config.k_activation = activation;
    LinearTokens tokens(config, 10, 5);
    for (float& value : tokens.data) value *= 5e3f;  // up to ±1e4
    const LinearResult got = Whole(tokens);
    for (float value : got.out[0]) ASSERT_TRUE(std::isfinite(value));
    for (float value : got.state[0]) ASSERT_TRUE(std::isfinite(value));
    LinearOracle(tokens).Expect(got.out[0], got.state[0], 1e-5);
  }
}

TEST_P(LinearAttentionTest, BitsDoNotDependOnCutsOrThreads) {
  for (const auto& [d, e] : {std::pair(8, 1), std::pair(48, 64),
                             std::pair(64, 48), std::pair(100, 100)}) {
    for (LrpeType position : kPositions) {
      SCOPED_TRACE(testing::Message() << d << " x " << e << " position "
                                      << static_cast<int>(position));
      LinearTestConfig config = Shape(3, d, e);
      config.position = position;
      const LinearTokens tokens(config, 130, 6);
      const LinearResult want = Whole(tokens);
      for (int threads : {2, 3}) ExpectSame(Whole(tokens, threads), want);
      for (const std::vector<LinearCut>& cuts :
           {std::vector<LinearCut>(130, {1}),
            std::vector<LinearCut>{{1}, {63}, {64}, {2}},
            std::vector<LinearCut>{{64}, {64}, {2}},
            std::vector<LinearCut>{{17}, {0}, {112}, {1}}}) {
        ThreadPool pool(2);
        ExpectSame(RunLinear({&tokens}, cuts, pool), want);
      }
    }
  }
}

// Also: a sequence that has no tokens in a step keeps its state (RunLinear
// checks), though it is in the batch.
TEST_P(LinearAttentionTest, BitsDoNotDependOnTheBatch) {
  LinearTestConfig config = Shape(3, 48, 64);
  config.position = LrpeType::kCosine;
  const LinearTokens a(config, 70, 7);
  const LinearTokens b(config, 5, 8);
  const LinearTokens c(config, 1, 9);
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    const LinearResult together = RunLinear(
        {&a, &b, &c}, {{1, 2, 0}, {68, 0, 0}, {1, 1, 1}, {0, 2, 0}}, pool);
    LinearResult alone;
    for (const LinearTokens* tokens : {&a, &b, &c}) {
      const LinearResult one = Whole(*tokens);
      alone.out.push_back(one.out[0]);
      alone.state.push_back(one.state[0]);
    }
    ExpectSame(together, alone);
  }
}

TEST_P(LinearAttentionTest, NaNOfOneSequenceStaysThere) {
  const LinearTestConfig config = Shape(3, 48, 64);
  const LinearTokens a(config, 9, 10);
  LinearTokens bad(config, 9, 11);
  bad.data[bad.k] = kNaN;
  bad.state.assign(bad.state.size(), kNaN);
  const LinearTokens c(config, 9, 12);
  ThreadPool pool(2);
  const LinearResult got =
      RunLinear({&a, &bad, &c}, {{4, 4, 4}, {5, 5, 5}}, pool);
  EXPECT_TRUE(std::isnan(got.out[1][0]));
  for (size_t i : {0, 2}) {
    const LinearResult alone = Whole(i == 0 ? a : c);
    EXPECT_TRUE(SameBits(got.out[i], alone.out[0]));
    EXPECT_TRUE(SameBits(got.state[i], alone.state[0]));
  }
}

TEST_P(LinearAttentionTest, EmptySteps) {
  const LinearTokens tokens(Shape(2, 8, 8), 0, 13);
  ThreadPool pool(2);
  const LinearResult got = RunLinear({&tokens}, {{0}, {0}}, pool);
  EXPECT_TRUE(SameBits(got.state[0], tokens.state));
}

RECURVE_INSTANTIATE_SIMD_TEST(LinearAttentionTest);

}  // namespace
}  // namespace recurve
