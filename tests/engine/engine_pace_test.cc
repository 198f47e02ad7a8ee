// That the engine tells its pacer of prompts what it has to know, and does what
// the pacer says; on a FakeRunner, which says how long its steps took.

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "engine/serving/engine.h"
#include "engine/serving/prompt_pacer.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"

namespace recurve {
namespace {

constexpr double kSlowdown = 2;
constexpr double kDecodeSeconds = 0.01;
constexpr double kTokenSeconds = 1e-4;

double DeviceSeconds(int64_t prompt_tokens) {
  return kDecodeSeconds + kTokenSeconds * static_cast<double>(prompt_tokens);
}

class EnginePaceTest : public testing::TestWithParam<bool> {
 protected:
  EnginePaceTest() {
    fake_.runs_ahead = GetParam();
    fake_.num_slots = 2;
    fake_.num_pages = 0;
    // So that who decodes is still at it, however late the others come.
    fake_.step_time = std::chrono::microseconds(100);
    fake_.device_seconds = [](const StepBatch& batch) {
      const int64_t others = batch.num_tokens() - batch.num_sequences();
      return DeviceSeconds(others > 0 ? others + 1 : 0);
    };
    options_ = OptionsFor(fake_);
    options_.max_model_len = 20000;
    options_.max_num_batched_tokens = options_.max_chunk_tokens = 20000;
    options_.max_decode_slowdown = kSlowdown;
  }

  // Decodes from its first step on.
  static Script Decoding(int64_t generate) {
    Script script = Script::Generate({1}, generate);
    script.options.priority = 2;
    return script;
  }

  FakeRunnerOptions fake_;
  EngineOptions options_;
};
INSTANTIATE_TEST_SUITE_P(, EnginePaceTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Ahead" : "Plain";
                         });

// Each chunk is what a pacer allows that was told of the steps before, and, if
// this one was launched behind one that is not done, of that one's prompts.
TEST_P(EnginePaceTest, ChunksAreThePacersOwn) {
  constexpr int64_t kPrompt = 6000;
  const bool ahead = GetParam();
  PromptPacer pacer(kSlowdown);
  int64_t done = 0;        // of the prompt's tokens
  int64_t last_chunk = 0;  // of the step before
  int64_t steps = 0;
  int64_t chunks = 0;
  bool differs = false;
  fake_.on_run = [&](const StepBatch& batch) {
    // A prompt without decoding sequences: this must not happen.
    if (batch.num_sequences() == 1 && batch.num_tokens() > 1) differs = true;
    const int64_t chunk =
        batch.num_sequences() == 2 ? batch.num_tokens() - 1 : 0;
    const int64_t most = pacer.MaxTokens(1, ahead ? last_chunk : 0);
    if (0 < done + chunk && done < kPrompt)
      differs |= chunk != std::min(most, kPrompt - done);
    done += chunk;
    chunks += chunk > 0;
    // Those that run ahead are heard of when the next is launched.
    const int64_t heard = ahead ? last_chunk : chunk;
    if (!ahead || steps > 0)
      pacer.OnStep(1, heard, heard, DeviceSeconds(heard));
    last_chunk = chunk;
    ++steps;
  };
  const auto engine = MakeEngine(options_, fake_);
  const auto decoding = std::make_shared<RecordingSink>();
  const auto id = Submit(*engine, Decoding(15000), decoding);
  ASSERT_TRUE(id.ok()) << id.status();
  decoding->WaitTokens(5);
  EXPECT_TRUE(
      RunAlone(*engine, Script::Generate(Prompt(kPrompt), 1)).end->ok());
  EXPECT_FALSE(decoding->Record().end);
  engine->Cancel(*id, absl::CancelledError("the client left"));
  decoding->WaitEnd();
  EXPECT_FALSE(differs);
  EXPECT_EQ(done, kPrompt);
  EXPECT_GT(chunks, 5);
}

// A command of one token is not paced, but what it has to compute again is, if
// that is much.
TEST_P(EnginePaceTest, WhatIsComputedAgainIsPaced) {
  constexpr int64_t kPrompt = 3000;
  int64_t largest = 0;
  fake_.on_run = [&](const StepBatch& batch) {
    largest = std::max(largest, batch.num_tokens() - batch.num_sequences() + 1);
  };
  const auto engine = MakeEngine(options_, fake_);
  const auto decoding = std::make_shared<RecordingSink>();
  const auto first = Submit(*engine, Decoding(15000), decoding);
  ASSERT_TRUE(first.ok()) << first.status();
  decoding->WaitTokens(5);
  const auto low = std::make_shared<RecordingSink>();
  const auto id = Submit(*engine, Script::Generate(Prompt(kPrompt), 1), low,
                         /*close_when_done=*/false);
  ASSERT_TRUE(id.ok()) << id.status();
  low->WaitCommands(1);
  engine->Extend(*id, {{1}, 10000, LogitsMode::kNone});
  low->WaitTokens(5);
  Script high = Script::Generate({2}, 3);
  high.options.priority = 1;
  EXPECT_TRUE(RunAlone(*engine, high).end->ok());
  EXPECT_EQ(engine->load().recomputes_total, 1u);
  low->WaitTokens(low->Record().tokens.size() + 5);
  EXPECT_FALSE(decoding->Record().end);
  engine->Cancel(*id, absl::CancelledError("the client left"));
  engine->Cancel(*first, absl::CancelledError("the client left"));
  low->WaitEnd();
  decoding->WaitEnd();
  // What is saved at most, and what one step leaves.
  EXPECT_LE(static_cast<double>(largest) * kTokenSeconds,
            PromptPacer::kBurstSeconds + kDecodeSeconds);
  EXPECT_GE(largest, PromptPacer::kLeastTokens);
}

}  // namespace
}  // namespace recurve
