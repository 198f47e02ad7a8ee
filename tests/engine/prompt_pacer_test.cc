#include "engine/serving/prompt_pacer.h"

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"

namespace recurve {
namespace {

// A device whose steps take `fixed` and something for each token, in seconds.
struct PacedDevice {
  double decode = 0.003;
  double fixed = 0.002;  // of a step with prompts
  double token = 20e-6;
  double Seconds(int64_t tokens) const {
    return decode + (tokens > 0 ? fixed : 0) +
           token * static_cast<double>(tokens);
  }
};

struct Outcome {
  double mean_seconds;
  int64_t tokens;
};
// Steps with 32 decoding sequences and abundant prompts, at most `chunk`
// tokens.
Outcome Serve(PromptPacer& pacer, PacedDevice& device, int steps, int64_t chunk,
              double growth = 0) {
  double seconds = 0;
  int64_t all = 0;
  for (int i = 0; i < steps; ++i) {
    const int64_t tokens = std::min(chunk, pacer.MaxTokens(32));
    const double step = device.Seconds(tokens);
    pacer.OnStep(32, tokens, tokens, step);
    device.token += growth * static_cast<double>(tokens);
    seconds += step;
    all += tokens;
  }
  return {seconds / steps, all};
}

TEST(PromptPacerTest, WithoutALimitOrDecodingEverythingGoes) {
  PromptPacer off(0);
  off.OnStep(3, 0, 0, 1.0);
  EXPECT_EQ(off.MaxTokens(3), PromptPacer::kUnlimited);
  const PromptPacer pacer(2);
  EXPECT_EQ(pacer.MaxTokens(0), PromptPacer::kUnlimited);
}

TEST(PromptPacerTest, MeasuresDecodingFirst) {
  PromptPacer pacer(2);
  EXPECT_EQ(pacer.MaxTokens(32), 0);
  pacer.OnStep(32, 0, 0, 0.003);
  EXPECT_EQ(pacer.MaxTokens(32), PromptPacer::kLeastTokens);
  // Far more or fewer sequences: what was measured tells nothing.
  EXPECT_EQ(pacer.MaxTokens(65), 0);
  EXPECT_EQ(pacer.MaxTokens(15), 0);
}

TEST(PromptPacerTest, KeepsTheMeanAndSpendsWhatItMay) {
  for (const double slowdown : {1.25, 2.0, 4.0}) {
    for (const double token : {1e-6, 20e-6, 300e-6}) {
      PromptPacer pacer(slowdown);
      PacedDevice device;
      device.token = token;
      const Outcome outcome = Serve(pacer, device, 5000, 2048);
      EXPECT_LE(outcome.mean_seconds, 1.02 * slowdown * device.decode)
          << slowdown << ", " << token;
      // Chunks of 2048 cheap tokens cannot spend it all.
      if (token > 1e-6) {
        EXPECT_GE(outcome.mean_seconds, 0.85 * slowdown * device.decode)
            << slowdown << ", " << token;
      }
    }
  }
}

// A step is planned before the one before it is done.
TEST(PromptPacerTest, KeepsTheMeanWhereStepsRunAhead) {
  for (const double slowdown : {1.25, 2.0, 4.0}) {
    for (const double token : {20e-6, 300e-6}) {
      PromptPacer pacer(slowdown);
      const PacedDevice device = {.token = token};
      double seconds = 0;
      int64_t under_way = pacer.MaxTokens(32);
      constexpr int kSteps = 5000;
      for (int i = 0; i < kSteps; ++i) {
        const int64_t next =
            std::min<int64_t>(2048, pacer.MaxTokens(32, under_way));
        pacer.OnStep(32, under_way, under_way, device.Seconds(under_way));
        seconds += device.Seconds(under_way);
        under_way = next;
      }
      EXPECT_LE(seconds / kSteps, 1.02 * slowdown * device.decode)
          << slowdown << ", " << token;
      EXPECT_GE(seconds / kSteps, 0.85 * slowdown * device.decode)
          << slowdown << ", " << token;
    }
  }
}

TEST(PromptPacerTest, WhatIsUnderWayIsSpent) {
  PromptPacer pacer(2);
  pacer.OnStep(32, 0, 0, 0.003);
  // What a token costs is not known before the first chunk is done.
  EXPECT_EQ(pacer.MaxTokens(32), PromptPacer::kLeastTokens);
  EXPECT_EQ(pacer.MaxTokens(32, 256), 0);
  pacer.OnStep(32, 256, 256, 0.003 + 256 * 100e-6);
  EXPECT_GT(pacer.MaxTokens(32), 700);
  EXPECT_LT(pacer.MaxTokens(32, 512), pacer.MaxTokens(32));
  EXPECT_EQ(pacer.MaxTokens(32, 1024), 0);
}

// The smallest chunk takes as long as 128 or 256 steps.
TEST(PromptPacerTest, ChunksThatCostManyStepsArePaidFor) {
  for (const double token : {0.0015, 0.003}) {
    PromptPacer pacer(2);
    PacedDevice device;
    device.token = token;
    const Outcome outcome = Serve(pacer, device, 50000, 2048);
    EXPECT_LE(outcome.mean_seconds, 2.04 * device.decode) << token;
    EXPECT_GE(outcome.mean_seconds, 1.8 * device.decode) << token;
  }
}

// Steps of decoding differ by more than the bound: prompts run all the same.
TEST(PromptPacerTest, UnevenStepsDoNotHoldPromptsUp) {
  PromptPacer pacer(1.1);
  int64_t last = 0;  // step with prompts
  for (int64_t i = 0; i < 20000; ++i) {
    const double decode = i % 5 < 3 ? 0.0065 : 0.005;
    const int64_t tokens = std::min<int64_t>(2048, pacer.MaxTokens(32));
    pacer.OnStep(32, tokens, tokens,
                 decode + 20e-6 * static_cast<double>(tokens));
    if (tokens > 0) last = i;
  }
  EXPECT_GT(last, 19000);
}

// Chunks leave cold caches and low clocks behind: what that adds to the steps
// between them is theirs.
TEST(PromptPacerTest, PaysForWhatChunksDoToTheStepsBetween) {
  for (const double slowdown : {1.5, 2.0, 4.0}) {
    PromptPacer pacer(slowdown);
    constexpr double kDecode = 0.0031;
    for (int i = 0; i < 50; ++i) pacer.OnStep(32, 0, 0, kDecode);
    double seconds = 0;
    int64_t all = 0;
    constexpr int kSteps = 1000;
    for (int i = 0; i < kSteps; ++i) {
      const int64_t tokens = std::min<int64_t>(2048, pacer.MaxTokens(32));
      const double step = tokens > 0 ? kDecode + 0.04 : 1.13 * kDecode;
      pacer.OnStep(32, tokens, tokens, step);
      seconds += step;
      all += tokens;
    }
    EXPECT_LE(seconds / kSteps, 1.07 * slowdown * kDecode) << slowdown;
    EXPECT_GE(seconds / kSteps, 0.9 * slowdown * kDecode) << slowdown;
    EXPECT_GT(all, 0);
  }
}

// Sequences come and go, and some steps are fast: prompts still get most of
// their allowance.
TEST(PromptPacerTest, FollowsSequencesThatComeAndGo) {
  PromptPacer pacer(2);
  double alone = 0;
  double seconds = 0;
  constexpr int kSteps = 20000;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t decoding = 32 + i / 40 % 9;
    double decode = 0.003 + 0.0001 * static_cast<double>(decoding - 32);
    if (i % 500 == 499) decode *= 0.5;
    const int64_t tokens = std::min<int64_t>(2048, pacer.MaxTokens(decoding));
    const double step =
        decode +
        (tokens > 0 ? 0.002 + 20e-6 * static_cast<double>(tokens) : 0.0);
    pacer.OnStep(decoding, tokens, tokens, step);
    alone += decode;
    seconds += step;
  }
  EXPECT_LE(seconds, 2.04 * alone);
  EXPECT_GE(seconds, 1.8 * alone);
}

TEST(PromptPacerTest, ShortPromptsAreNotPaced) {
  PromptPacer pacer(2);
  EXPECT_TRUE(pacer.Paces(32, 1));  // decoding has to be measured
  EXPECT_FALSE(pacer.Paces(0, 1 << 20));
  pacer.OnStep(32, 0, 0, 0.001);
  EXPECT_FALSE(pacer.Paces(32, 256));
  EXPECT_TRUE(pacer.Paces(32, 257));
  pacer.OnStep(32, 256, 0, 0.001 + 256 * 50e-6);
  EXPECT_FALSE(pacer.Paces(32, 999));  // 50 ms
  EXPECT_TRUE(pacer.Paces(32, 1001));
  // A few tokens say nothing of what one costs.
  for (int i = 0; i < 10; ++i) pacer.OnStep(32, 8, 0, 0.005);
  EXPECT_FALSE(pacer.Paces(32, 999));
  // Where a step takes long, more is short: 16 steps.
  PromptPacer slow(2);
  slow.OnStep(32, 0, 0, 0.01);
  slow.OnStep(32, 256, 256, 0.01 + 256 * 50e-6);
  EXPECT_FALSE(slow.Paces(32, 3199));
  EXPECT_TRUE(slow.Paces(32, 3201));
  EXPECT_FALSE(PromptPacer(0).Paces(32, 1 << 20));
}

// Long prompts get their share alongside any number of short ones.
TEST(PromptPacerTest, ShortPromptsAreNotCharged) {
  PromptPacer pacer(2);
  const PacedDevice device;
  double added = 0;
  int64_t paced = 0;
  constexpr int kSteps = 5000;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t tokens = std::min<int64_t>(2048, pacer.MaxTokens(32));
    // While decoding has to be measured, they wait, too.
    const int64_t others = pacer.Paces(32, 500) ? 0 : 500;
    const double seconds = device.Seconds(tokens + others);
    pacer.OnStep(32, tokens + others, tokens, seconds);
    if (tokens > 0) {
      added += (seconds - device.decode) * static_cast<double>(tokens) /
               static_cast<double>(tokens + others);
    }
    paced += tokens;
  }
  EXPECT_LE(added / kSteps, 1.02 * device.decode);
  EXPECT_GE(added / kSteps, 0.85 * device.decode);
  EXPECT_GT(paced, 0);
}

// Thirty-two short prompts at once, after a while without: at full speed.
TEST(PromptPacerTest, ShortBurstsAreNotHeldUp) {
  PromptPacer pacer(2);
  PacedDevice device;
  device.token = 8e-6;
  Serve(pacer, device, 100, 256);  // all is spent
  for (int i = 0; i < 100; ++i) pacer.OnStep(32, 0, 0, device.decode);
  int64_t left = 32 * 256;
  int steps = 0;
  for (; left > 0 && steps < 100; ++steps) {
    const int64_t tokens = std::min(left, pacer.MaxTokens(32));
    pacer.OnStep(32, tokens, tokens, device.Seconds(tokens));
    left -= tokens;
  }
  EXPECT_LE(steps, 3);
}

// As a prompt's context grows, so do its tokens' costs.
TEST(PromptPacerTest, FollowsCostsThatGrow) {
  PromptPacer pacer(2);
  PacedDevice device;
  const Outcome outcome = Serve(pacer, device, 3000, 512, 1e-9);
  EXPECT_GT(device.token, 40e-6);
  EXPECT_LE(outcome.mean_seconds, 2.04 * device.decode);
}

TEST(PromptPacerTest, AHiccupStopsPromptsForAWhileOnly) {
  PromptPacer pacer(2);
  PacedDevice device;
  Serve(pacer, device, 100, 512);
  pacer.OnStep(32, 256, 256, 10.0);  // 3000 steps' time
  EXPECT_EQ(pacer.MaxTokens(32), 0);
  EXPECT_GT(Serve(pacer, device, 100, 512).tokens, 0);
}

TEST(PromptPacerTest, AnswersAreMultiples) {
  PromptPacer pacer(3);
  PacedDevice device;
  device.token = 7.3e-6;
  for (int i = 0; i < 200; ++i) {
    const int64_t tokens = pacer.MaxTokens(32);
    EXPECT_EQ(tokens % PromptPacer::kMultiple, 0);
    EXPECT_TRUE(tokens == 0 || tokens >= PromptPacer::kLeastTokens);
    pacer.OnStep(32, tokens, tokens, device.Seconds(tokens));
  }
}

}  // namespace
}  // namespace recurve
