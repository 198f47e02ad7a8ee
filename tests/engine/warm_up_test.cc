#include "engine/program/warm_up.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/models/tpa/tpa_launches.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

int64_t Any(absl::Span<const int64_t> /*positions*/, int64_t /*rows*/) {
  return 0;
}

void ExpectValid(const StepBatch& step, const WarmUpLimits& limits) {
  EXPECT_LE(step.num_tokens(), limits.max_tokens);
  EXPECT_LE(step.num_sequences(), limits.max_sequences);
  EXPECT_LE(step.page_table_stride, limits.max_pages);
  EXPECT_THAT(step.positions, SizeIs(step.num_tokens()));
  EXPECT_THAT(step.row_sequence, SizeIs(step.num_tokens()));
  EXPECT_THAT(step.kinds, SizeIs(step.num_tokens()));
  EXPECT_THAT(step.query_start, SizeIs(step.num_sequences() + 1));
  EXPECT_EQ(step.query_start.back(), step.num_tokens());
  EXPECT_THAT(step.page_table,
              SizeIs(step.num_sequences() * step.page_table_stride));
  EXPECT_THAT(step.page_table, Each(0));
  EXPECT_THAT(step.slots, Each(0));
  EXPECT_THAT(step.logit_rows, SizeIs(step.num_sequences()));
  EXPECT_TRUE(step.samples.empty());
  EXPECT_FALSE(step.wants_logits);
  for (const int64_t position : step.positions) {
    EXPECT_GE(position, 0);
    if (limits.max_pages > 0) {
      EXPECT_LT(position, step.page_table_stride * 64);
    }
  }
}

// The last: of what later commands append, several tokens of a sequence that
// are no prompt, or a prompt that does not begin at position 0.
size_t LaterSteps(const std::vector<StepBatch>& steps) {
  size_t count = 0;
  for (; count < steps.size(); ++count) {
    const StepBatch& step = steps[steps.size() - 1 - count];
    const bool few = step.kinds[0] == TokenKind::kStep &&
                     step.num_tokens() > step.num_sequences();
    const bool prompt = StartsPrompt(step.kinds[0]) && step.positions[0] > 0;
    if (!few && !prompt) break;
  }
  return count;
}

// The steps of short prompts, which come after the first step.
size_t ShortPromptSteps(const std::vector<StepBatch>& steps) {
  size_t count = 0;
  for (size_t i = 1; i < steps.size() - LaterSteps(steps); ++i) {
    if (steps[i].kinds[0] == TokenKind::kStep) {
      EXPECT_EQ(count, 0u);
    } else {
      ++count;
    }
  }
  return count;
}

// Where steps of short prompts begin.
size_t FirstShortPrompt(const std::vector<StepBatch>& steps) {
  return steps.size() - LaterSteps(steps) - ShortPromptSteps(steps);
}

// Sequences of each step between those of prompts, in order.
std::vector<int64_t> Sequences(const std::vector<StepBatch>& steps) {
  std::vector<int64_t> counts;
  for (size_t i = 1; i < FirstShortPrompt(steps); ++i) {
    EXPECT_THAT(steps[i].kinds, Each(TokenKind::kStep));
    EXPECT_EQ(steps[i].num_tokens(), steps[i].num_sequences());
    counts.push_back(steps[i].num_sequences());
  }
  return counts;
}

TEST(WarmUpTest, EveryPowerOfTwoTwice) {
  const WarmUpLimits limits = {256, 6, 8};
  const std::vector<StepBatch> steps = WarmUpSteps(limits, Any);
  for (const StepBatch& step : steps) ExpectValid(step, limits);
  EXPECT_THAT(Sequences(steps), ElementsAre(1, 1, 2, 2, 4, 4, 6, 6));
  // A prompt that fills the step, together with a decode token.
  EXPECT_EQ(steps[0].num_tokens(), 256);
  EXPECT_EQ(steps[0].query_start[1], 255);
  EXPECT_EQ(steps[0].kinds[0], TokenKind::kPromptStart);
  EXPECT_EQ(steps[0].kinds[254], TokenKind::kPrompt);
  EXPECT_EQ(steps[0].kinds[255], TokenKind::kStep);
}

// Where contexts are told apart, steps of both kinds, as short as may be.
TEST(WarmUpTest, ShortContextsAndLong) {
  const WarmUpLimits limits = {64, 4, 20};
  const auto contexts_of = [](absl::Span<const int64_t> positions,
                              int64_t rows) {
    int64_t pages = 0;
    for (const int64_t position : positions) pages += position / 64 + 1;
    return int64_t{pages <= 10 && rows < 4};
  };
  const std::vector<StepBatch> steps = WarmUpSteps(limits, contexts_of);
  for (const StepBatch& step : steps) ExpectValid(step, limits);
  EXPECT_THAT(Sequences(steps), ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 4, 4));
  EXPECT_EQ(steps[1].positions[0], 0);
  EXPECT_EQ(steps[3].positions[0], 703);
  EXPECT_EQ(steps[7].positions[0], 383);
}

// More than two kinds of contexts.
TEST(WarmUpTest, EachKindOfContexts) {
  const WarmUpLimits limits = {64, 1, 40};
  const auto contexts_of = [](absl::Span<const int64_t> positions, int64_t) {
    return int64_t{positions[0] >= 128} + int64_t{positions[0] >= 1024};
  };
  const std::vector<StepBatch> steps = WarmUpSteps(limits, contexts_of);
  for (const StepBatch& step : steps) ExpectValid(step, limits);
  ASSERT_EQ(FirstShortPrompt(steps), 7u);
  EXPECT_EQ(steps[2].positions[0], 0);
  EXPECT_EQ(steps[4].positions[0], 191);
  EXPECT_EQ(steps[6].positions[0], 1087);
}

// Every kind that steps of T6-XL can be of, also one that only contexts of
// different lengths are.
TEST(WarmUpTest, EachKindOfARealModel) {
  const TpaShape shape = {78, 64, 64, 6, 2};
  const int few = TpaFewChunks(shape, {132, 227 << 10, true, 14});
  const WarmUpLimits limits = {64, 8, 512};
  for (int short_rows : {0, 2, 4}) {
    SCOPED_TRACE(short_rows);
    const auto contexts_of = [&](absl::Span<const int64_t> positions,
                                 int64_t rows) {
      return TpaContextsOf(positions, rows, {few, 0, short_rows});
    };
    const std::vector<StepBatch> steps = WarmUpSteps(
        limits, [&](absl::Span<const int64_t> positions, int64_t rows) {
          return static_cast<int64_t>(contexts_of(positions, rows));
        });
    for (const StepBatch& step : steps) ExpectValid(step, limits);
    std::map<int64_t, std::set<TpaContexts>> kinds;  // by sequences
    for (size_t i = 1; i < FirstShortPrompt(steps); ++i) {
      const StepBatch& step = steps[i];
      kinds[step.num_sequences()].insert(
          contexts_of(step.positions, step.num_sequences()));
    }
    const std::set<TpaContexts> two = {TpaContexts::kFew, TpaContexts::kAny};
    const std::set<TpaContexts> three = {TpaContexts::kShort, TpaContexts::kFew,
                                         TpaContexts::kAny};
    const std::set<TpaContexts> one = {
        short_rows > 0 ? TpaContexts::kShort : TpaContexts::kFew,
        TpaContexts::kAny};
    EXPECT_EQ(kinds[1], one);
    EXPECT_EQ(kinds[2], short_rows >= 2 ? three : two);
    EXPECT_EQ(kinds[4], short_rows >= 4 ? three : two);
    EXPECT_EQ(kinds[8], two);
  }
}

// And of T6-large, whose heads are rows where there is much to attend to.
TEST(WarmUpTest, ManyChunksOfARealModel) {
  const TpaShape shape = {61, 64, 64, 6, 2};
  const TpaDevice device = {132, 227 << 10, true, 14};
  const TpaContextLimits of = {TpaFewChunks(shape, device),
                               TpaManyChunks(shape, device),
                               TpaShortRows(shape, device)};
  const auto contexts_of = [&](absl::Span<const int64_t> positions,
                               int64_t rows) {
    return TpaContextsOf(positions, rows, of);
  };
  const WarmUpLimits limits = {64, 8, 512};
  const std::vector<StepBatch> steps = WarmUpSteps(
      limits, [&](absl::Span<const int64_t> positions, int64_t rows) {
        return static_cast<int64_t>(contexts_of(positions, rows));
      });
  std::map<int64_t, int> many;  // by sequences
  for (size_t i = 1; i < FirstShortPrompt(steps); ++i) {
    const StepBatch& step = steps[i];
    many[step.num_sequences()] +=
        contexts_of(step.positions, step.num_sequences()) == TpaContexts::kMany;
  }
  // 136 chunks of 32,768 tokens, more than 528 of them; each twice.
  EXPECT_EQ(many[2], 0);
  EXPECT_EQ(many[4], 2);
  EXPECT_EQ(many[8], 2);
}

// The longest context is not a power of two.
TEST(WarmUpTest, LongContextsUpToTheLast) {
  const WarmUpLimits limits = {64, 1, 11};
  const auto contexts_of = [](absl::Span<const int64_t> positions, int64_t) {
    return int64_t{positions[0] >= 640};
  };
  const std::vector<StepBatch> steps = WarmUpSteps(limits, contexts_of);
  for (const StepBatch& step : steps) ExpectValid(step, limits);
  ASSERT_EQ(FirstShortPrompt(steps), 5u);
  EXPECT_EQ(steps[4].positions[0], 703);
}

TEST(WarmUpTest, ShortPrompts) {
  const WarmUpLimits limits = {1100, 32, 40};
  const std::vector<StepBatch> steps = WarmUpSteps(limits, Any);
  for (const StepBatch& step : steps) ExpectValid(step, limits);
  std::vector<std::pair<int64_t, int64_t>> prompts;  // and tokens of all
  for (size_t i = FirstShortPrompt(steps); i < steps.size() - LaterSteps(steps);
       ++i) {
    prompts.emplace_back(steps[i].num_sequences(), steps[i].num_tokens());
    EXPECT_EQ(steps[i].kinds[0], TokenKind::kShortPromptStart);
    EXPECT_EQ(steps[i].kinds[1], TokenKind::kShortPrompt);
  }
  EXPECT_THAT(prompts, ElementsAre(Pair(1, 64), Pair(1, 128), Pair(1, 256),
                                   Pair(1, 384), Pair(2, 512), Pair(4, 1024)));
  // As many as there is room for.
  EXPECT_EQ(ShortPromptSteps(WarmUpSteps({63, 32, 40}, Any)), 0u);
  EXPECT_EQ(ShortPromptSteps(WarmUpSteps({255, 32, 40}, Any)), 2u);
  EXPECT_EQ(ShortPromptSteps(WarmUpSteps({4096, 32, 1}, Any)), 1u);
  EXPECT_EQ(ShortPromptSteps(WarmUpSteps({4096, 5, 40}, Any)), 6u);
  EXPECT_EQ(ShortPromptSteps(WarmUpSteps({4096, 6, 40}, Any)), 7u);
}

TEST(WarmUpTest, WhatLaterCommandsAppend) {
  for (const WarmUpLimits& limits :
       {WarmUpLimits{1100, 32, 40}, {1100, 1, 40}, {1100, 32, 0}}) {
    const std::vector<StepBatch> steps = WarmUpSteps(limits, Any);
    const StepBatch& few = steps[steps.size() - 2];
    ExpectValid(few, limits);
    EXPECT_THAT(few.kinds, Each(TokenKind::kStep));
    EXPECT_EQ(few.query_start[1], 9);
    EXPECT_EQ(few.num_sequences(), limits.max_sequences > 1 ? 2 : 1);
    const StepBatch& prompt = steps.back();
    ExpectValid(prompt, limits);
    EXPECT_EQ(prompt.num_tokens(), 64);
    EXPECT_EQ(prompt.kinds[0], TokenKind::kShortPromptStart);
    EXPECT_EQ(prompt.positions[0], 1);
  }
  // As many as there is room for.
  EXPECT_EQ(WarmUpSteps({31, 2, 40}, Any).back().num_tokens(), 10);
  EXPECT_EQ(WarmUpSteps({1, 1, 40}, Any).back().num_tokens(), 1);
}

// The first step has tokens as longer prompts have, even if it holds few.
TEST(WarmUpTest, ALongPrompt) {
  EXPECT_EQ(WarmUpSteps({64, 4, 7}, Any)[0].kinds[0], TokenKind::kPromptStart);
  EXPECT_EQ(WarmUpSteps({64, 4, 6}, Any)[0].kinds[0],
            TokenKind::kShortPromptStart);
  EXPECT_EQ(WarmUpSteps({4096, 4, 0}, Any)[0].kinds[0],
            TokenKind::kPromptStart);
}

TEST(WarmUpTest, SmallLimits) {
  for (const WarmUpLimits& limits :
       {WarmUpLimits{1, 1, 0}, WarmUpLimits{1, 1, 1}, WarmUpLimits{2, 2, 0},
        WarmUpLimits{100000, 3, 1}, WarmUpLimits{100000, 100, 0}}) {
    SCOPED_TRACE(limits.max_tokens);
    const std::vector<StepBatch> steps = WarmUpSteps(limits, Any);
    for (const StepBatch& step : steps) ExpectValid(step, limits);
    EXPECT_EQ(Sequences(steps).back(), limits.max_sequences);
    EXPECT_LE(steps[0].num_tokens(), kWarmUpPromptTokens + 1);
  }
}

}  // namespace
}  // namespace recurve
