#include "kernels/sampling/sampling.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/sampling_testing.h"

namespace recurve {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

// ---- Greedy ----

TEST(SamplingTest, GreedyTakesTheSmallestIdAmongEquals) {
  for (size_t vocab : {1, 2, 7, 8, 9, 15, 16, 17, 258}) {
    for (size_t first = 0; first < vocab; ++first) {
      Case c;
      c.logits.assign(vocab, -2);
      for (size_t id = first; id < vocab; ++id) c.logits[id] = 3;
      EXPECT_EQ(TokenOf(c), first) << "vocab " << vocab;
    }
  }
}

TEST(SamplingTest, GreedyTreatsMinusZeroAsZero) {
  Case c;
  c.logits = {-1, -0.0f, 0.0f};
  EXPECT_EQ(TokenOf(c), 1);
  c.params.num_logprobs = 3;
  const auto result = Sample(c);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->top[0].first, 1);
  EXPECT_EQ(result->top[1].first, 2);
}

TEST(SamplingTest, GreedyIgnoresTruncationAndSeed) {
  Case c;
  c.logits = {1, 5, 2};
  c.params.top_k = 1;
  c.params.top_p = 0.01f;
  c.params.min_p = 1;
  c.params.seed = 77;
  EXPECT_EQ(TokenOf(c), 1);
}

TEST(SamplingTest, GreedyFindsExtremes) {
  Case c;
  c.logits = {-kMax, -kInf, -1e4f};
  EXPECT_EQ(TokenOf(c), 2);
  c.logits = {-kInf, -kMax};
  EXPECT_EQ(TokenOf(c), 1);
  c.logits = {kMax, 1e4f};
  EXPECT_EQ(TokenOf(c), 0);
  c.logits = {-5};
  EXPECT_EQ(TokenOf(c), 0);
}

// ---- Masks ----

TEST(SamplingTest, MaskedTokensAreImpossibleAtFirst) {
  Case c;
  c.logits = {1, 9, 3, 8};
  c.params.masked = {1, 3};
  c.params.min_tokens = 5;
  c.params.logit_bias = {{1, 100}};
  c.params.num_logprobs = 4;
  for (const float temperature : {0.0f, 1.0f}) {
    c.params.temperature = temperature;
    for (c.index = 0; c.index < 5; ++c.index) {
      const auto result = Sample(c);
      ASSERT_TRUE(result.ok());
      EXPECT_TRUE(result->token == 0 || result->token == 2) << result->token;
      ASSERT_EQ(result->top.size(), 2u);
      EXPECT_NEAR(result->top[0].second, -std::log1p(std::exp(-2.0)), 1e-6);
    }
    EXPECT_EQ(TokenOf(c), 1);
  }
  c.logits = {1, 9};
  c.params.logit_bias.clear();
  c.params.masked = {0, 1};
  c.index = 0;
  EXPECT_EQ(Sample(c).status().code(), absl::StatusCode::kInternal);
}

// ---- Given tokens ----

// The arithmetic is that of tokens that are drawn.
TEST(SamplingTest, AGivenTokenHasTheLogprobOfADrawnOne) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 4);
  SamplingScratch scratch;
  for (int round = 0; round < 50; ++round) {
    Case c;
    for (int id = 0; id < 300; ++id) c.logits.push_back(normal(random));
    c.logits[random() % 300] = -kInf;
    c.params.num_logprobs = 5;
    c.params.temperature = 3;
    c.params.seed = round;
    const auto drawn = Sample(c);
    ASSERT_TRUE(drawn.ok());
    const auto given = ScoreToken(c.logits, drawn->token, 5, &scratch);
    ASSERT_TRUE(given.ok());
    EXPECT_EQ(given->logprob, drawn->logprob);
    EXPECT_EQ(given->top, drawn->top);
    int64_t better = 0;
    for (const float logit : c.logits) better += logit > c.logits[drawn->token];
    EXPECT_EQ(given->rank, 1 + better);
  }
}

TEST(SamplingTest, AGivenTokenMayBeImpossible) {
  SamplingScratch scratch;
  const std::vector<float> logits = {1, -kInf, 1};
  const auto given = ScoreToken(logits, 1, 0, &scratch);
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->logprob, -kInf);
  EXPECT_EQ(given->rank, 3);
  EXPECT_TRUE(given->top.empty());
  EXPECT_EQ(ScoreToken(logits, 3, 0, &scratch).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      ScoreToken(std::vector<float>{kNan, 1}, 1, 0, &scratch).status().code(),
      absl::StatusCode::kInternal);
}

// ---- Bad rows ----

TEST(SamplingTest, NonFiniteRowsFail) {
  for (float temperature : {0.0f, 1.0f}) {
    for (float bad : {kNan, -kNan, kInf}) {
      for (size_t vocab : {1, 3, 8, 19}) {
        for (size_t at = 0; at < vocab; ++at) {
          Case c;
          c.logits.assign(vocab, 1);
          c.logits[at] = bad;
          c.params.temperature = temperature;
          const auto status = Sample(c).status();
          EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("non-finite logits"));
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("token " + std::to_string(at)));
        }
      }
    }
    Case c;
    c.logits.assign(9, -kInf);
    c.params.temperature = temperature;
    EXPECT_EQ(Sample(c).status().message(),
              "non-finite logits: every one of 9 is -inf");
  }
}

TEST(SamplingTest, OverflowOfAPenaltyFails) {
  Case c;
  c.logits = {kMax, 0};
  c.prompt = {0};
  c.params.repetition_penalty = 0.5f;
  EXPECT_THAT(std::string(Sample(c).status().message()),
              HasSubstr("non-finite logits: inf for token 0"));
}

TEST(SamplingTest, IdsOutsideTheVocabularyAreRejected) {
  for (int32_t id : {-1, 3, std::numeric_limits<int32_t>::max(),
                     std::numeric_limits<int32_t>::min()}) {
    Case bias;
    bias.logits = {1, 2, 3};
    bias.params.logit_bias = {{0, 1.0f}, {id, 1.0f}};
    Case prompt;
    prompt.logits = {1, 2, 3};
    prompt.prompt = {0, id};
    prompt.params.repetition_penalty = 2;
    Case output;
    output.logits = {1, 2, 3};
    output.output = {0, id};
    output.params.presence_penalty = 1;
    for (const Case& c : {bias, prompt, output}) {
      SamplingScratch scratch;
      const auto status = SampleRow(c.input(), &scratch).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("token id " + std::to_string(id)));
      // The failure left nothing behind that a later row could trip over.
      Case next;
      next.logits = {1, 2, 3};
      next.output = {2};
      next.params.presence_penalty = 1.5f;
      EXPECT_EQ(SampleRow(next.input(), &scratch)->token, 1);
    }
  }
  EXPECT_EQ(Sample(Case()).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- Penalties and bias ----

TEST(SamplingTest, RepetitionPenaltyCoversPromptAndOutputOnce) {
  Case c;
  c.logits = {4, 3, 2, -1};
  c.params.repetition_penalty = 1.5f;
  EXPECT_EQ(TokenOf(c), 0);
  c.prompt = {0, 0, 0};  // 4 / 1.5 = 2.67, once
  EXPECT_EQ(TokenOf(c), 1);
  c.output = {1, 0};  // 3 / 1.5 = 2
  EXPECT_EQ(TokenOf(c), 0);
  c.params.repetition_penalty = 2.5f;  // 1.6, 1.2, 2
  EXPECT_EQ(TokenOf(c), 2);
  // A negative logit moves away from 0.
  c.logits = {-1, -1.5f, -9, -9};
  c.prompt = {0};
  c.output = {};
  c.params.repetition_penalty = 2;
  EXPECT_EQ(TokenOf(c), 1);
}

TEST(SamplingTest, PresenceAndFrequencyPenaltiesCoverTheOutputOnly) {
  Case c;
  c.logits = {3, 2.5f, 2};
  c.prompt = {0, 0, 0};
  c.params.presence_penalty = 0.75f;
  EXPECT_EQ(TokenOf(c), 0);
  c.output = {0, 0};  // 2.25 once, however often it occurs
  EXPECT_EQ(TokenOf(c), 1);
  c.output = {0, 0, 1};  // 2.25, 1.75, 2
  EXPECT_EQ(TokenOf(c), 0);
  c.params.presence_penalty = 0;
  c.params.frequency_penalty = 0.4f;
  c.output = {0};  // 2.6
  EXPECT_EQ(TokenOf(c), 0);
  c.output = {0, 0};  // 2.2
  EXPECT_EQ(TokenOf(c), 1);
  c.output = {0, 0, 0, 1, 1};  // 1.8, 1.7, 2
  EXPECT_EQ(TokenOf(c), 2);
}

TEST(SamplingTest, BiasComesAfterPenalties) {
  Case c;
  c.logits = {1, 0, 0};
  c.params.logit_bias = {{2, 2.0f}};
  EXPECT_EQ(TokenOf(c), 2);
  c.params.logit_bias = {{0, -100.0f}};
  EXPECT_EQ(TokenOf(c), 1);
  // 1 / 2 + 2 = 2.5, not (1 + 2) / 2.
  c.prompt = {0};
  c.params.repetition_penalty = 2;
  c.params.logit_bias = {{0, 2.0f}, {1, 2.25f}};
  EXPECT_EQ(TokenOf(c), 0);
  // An impossible token stays impossible.
  c.logits = {-kInf, 0, -1};
  c.params.logit_bias = {{0, 100.0f}};
  EXPECT_EQ(TokenOf(c), 1);
}

// ---- Log-probabilities ----

TEST(SamplingTest, LogprobsSumToOneInOrder) {
  Case c;
  std::mt19937_64 random(8);
  for (int id = 0; id < 300; ++id) {
    c.logits.push_back(static_cast<float>(random() % 40) / 8);  // many ties
  }
  c.params.num_logprobs = 300;
  c.params.temperature = 0.3f;  // logprobs are before temperature
  c.params.top_k = 2;           // and before truncation
  c.params.seed = 3;
  const auto result = Sample(c);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->top.size(), 300u);
  double sum = 0;
  for (size_t i = 0; i < 300; ++i) {
    sum += std::exp(result->top[i].second);
    if (result->top[i].first == result->token) {
      EXPECT_EQ(result->top[i].second, result->logprob);
    }
    if (i == 0) continue;
    EXPECT_LE(result->top[i].second, result->top[i - 1].second);
    if (result->top[i].second == result->top[i - 1].second) {
      EXPECT_GT(result->top[i].first, result->top[i - 1].first);
    }
  }
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(SamplingTest, LogprobsComeAfterPenaltiesAndBias) {
  Case c;
  c.logits = {2, 0};
  c.output = {0};
  c.params.presence_penalty = 1;
  c.params.logit_bias = {{1, 1.0f}};  // now 1 and 1
  c.params.num_logprobs = 1;
  const auto result = Sample(c);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->token, 0);
  EXPECT_FLOAT_EQ(result->logprob, std::log(0.5f));
  ASSERT_EQ(result->top.size(), 1u);
  EXPECT_EQ(result->top[0].first, 0);
}

TEST(SamplingTest, LogprobsComeInTheNumberAskedFor) {
  Case c;
  c.logits = {1, -kInf, 1e4f, 0};
  auto result = Sample(c);
  EXPECT_TRUE(result->top.empty());
  EXPECT_EQ(result->logprob, 0);
  c.params.num_logprobs = 0;
  result = Sample(c);
  EXPECT_TRUE(result->top.empty());
  EXPECT_FLOAT_EQ(result->logprob, 0);
  c.params.num_logprobs = 2;
  result = Sample(c);
  ASSERT_EQ(result->top.size(), 2u);
  EXPECT_EQ(result->top[0].first, 2);
  EXPECT_FLOAT_EQ(result->top[1].second, 1 - 1e4f);
  c.params.num_logprobs = 20;  // the impossible one is not reported
  EXPECT_EQ(Sample(c)->top.size(), 3u);
  c.logits = {7};
  EXPECT_EQ(Sample(c)->top.size(), 1u);
  EXPECT_EQ(Sample(c)->logprob, 0);
}

}  // namespace
}  // namespace recurve
