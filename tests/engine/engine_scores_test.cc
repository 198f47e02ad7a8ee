// Log-probabilities of prompts, on a FakeRunner, whose logits change with any
// mistake in memory.

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kTokens = 300;

Script Scored(int64_t tokens, int64_t generate, int32_t top = 3,
              uint64_t seed = 1) {
  Script script = Script::Generate(Prompt(tokens, seed), generate);
  script.commands[0].prompt_logprobs = top;
  return script;
}

// Bits, so that -Inf and rounding count.
void ExpectEqual(const std::vector<StepEvent::PromptLogprob>& got,
                 const std::vector<StepEvent::PromptLogprob>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].position, want[i].position);
    EXPECT_EQ(got[i].token, want[i].token);
    EXPECT_EQ(got[i].logprob, want[i].logprob) << i;
    EXPECT_EQ(got[i].rank, want[i].rank) << i;
    EXPECT_EQ(got[i].top, want[i].top) << i;
  }
}

class EngineScoresTest : public testing::Test {
 protected:
  EngineScoresTest() {
    fake_.on_run = [this](const StepBatch& batch) {
      {
        MutexLock lock(&mu_);
        most_rows_ = std::max(most_rows_, batch.logit_rows.size());
        computed_ += batch.num_tokens();
      }
      gate_.Enter(batch);
    };
  }
  ~EngineScoresTest() override { gate_.Open(); }

  void Start() { Start(OptionsFor(fake_)); }
  void Start(const EngineOptions& options) {
    engine_ = MakeEngine(options, fake_);
  }
  size_t most_rows() const {
    MutexLock lock(&mu_);
    return most_rows_;
  }

  FakeRunnerOptions fake_;
  StepGate gate_;
  std::unique_ptr<Engine> engine_;
  mutable Mutex mu_;
  size_t most_rows_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t computed_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(EngineScoresTest, TheyAreThoseOfTheModelsLogits) {
  Start();
  Script script = Scored(kTokens, 4);
  // They concern what is generated, not the prompt.
  script.options.sampling.logit_bias = {{7, 50}};
  script.options.sampling.repetition_penalty = 3;
  const StreamRecord record = RunAlone(*engine_, script);
  EXPECT_EQ(record.violation, "");
  EXPECT_THAT(record.tokens, SizeIs(4));
  ASSERT_THAT(record.prompt_logprobs, SizeIs(kTokens - 1));
  const std::vector<int32_t>& prompt = script.commands[0].append;
  std::vector<TokenKind> kinds;
  AppendKinds(kTokens, &kinds);
  SamplingScratch scratch;
  for (int64_t i = 1; i < kTokens; ++i) {
    const StepEvent::PromptLogprob& got = record.prompt_logprobs[i - 1];
    const auto known = static_cast<size_t>(i);
    const auto want =
        ScoreToken(FakeLogits(absl::MakeConstSpan(prompt).first(known),
                              absl::MakeConstSpan(kinds).first(known), fake_),
                   prompt[known], 3, &scratch);
    ASSERT_TRUE(want.ok());
    EXPECT_EQ(got.position, i);
    EXPECT_EQ(got.token, prompt[known]);
    EXPECT_EQ(got.logprob, want->logprob);
    EXPECT_EQ(got.rank, want->rank);
    EXPECT_EQ(got.top, want->top);
  }
  EXPECT_TRUE(IsIdle(*engine_));
}

// Nor do the tokens that are generated depend on them.
TEST_F(EngineScoresTest, TheyDoNotDependOnStepsOrCompany) {
  for (const bool ahead : {false, true}) {
    for (const int64_t multiple : {1, 64}) {
      SCOPED_TRACE(testing::Message() << ahead << " " << multiple);
      fake_.runs_ahead = ahead;
      fake_.chunk_multiple = multiple;
      const StreamRecord alone = RunSolo(fake_, Scored(kTokens, 20));
      ASSERT_THAT(alone.prompt_logprobs, SizeIs(kTokens - 1));
      EXPECT_EQ(alone.tokens,
                RunSolo(fake_, Script::Generate(Prompt(kTokens), 20)).tokens);
      FakeRunnerOptions tight = fake_;
      tight.num_pages = 14;  // so that some lose their memory
      EngineOptions options = OptionsFor(tight);
      options.max_model_len = 400;
      options.max_chunk_tokens = multiple == 1 ? 7 : 64;
      const auto engine = MakeEngine(options, tight);
      gate_.Hold();
      std::vector<std::shared_ptr<RecordingSink>> sinks;
      for (int i = 0; i < 6; ++i) {
        sinks.push_back(std::make_shared<RecordingSink>());
        Script script = Scored(kTokens, 20, 3, i % 2 == 0 ? 1 : 2);
        script.options.priority = i;
        ASSERT_TRUE(Submit(*engine, script, sinks.back()).ok());
        if (i > 0) continue;
        // In the middle of its prompt others take its memory.
        for (int steps = 0; steps < 3; ++steps) {
          gate_.WaitHeld();
          gate_.Pass();
        }
        gate_.WaitHeld();
      }
      gate_.Open();
      for (int i = 0; i < 6; ++i) {
        const StreamRecord record = sinks[i]->WaitEnd();
        EXPECT_EQ(record.violation, "");
        ASSERT_TRUE(record.end->ok()) << *record.end;
        if (i % 2 != 0) continue;
        ExpectEqual(record.prompt_logprobs, alone.prompt_logprobs);
        EXPECT_EQ(record.tokens, alone.tokens);
      }
      EXPECT_GT(engine->load().preemptions_total, 0);
    }
  }
}

TEST_F(EngineScoresTest, NothingIsTakenFromThePrefixCacheThatHasNoLogits) {
  fake_.num_host_blocks = 200;
  fake_.num_pages = 200;
  const StreamRecord alone = RunSolo(fake_, Scored(900, 5));
  EngineOptions options = OptionsFor(fake_);
  options.prefix_cache = true;
  Start(options);
  const Script plain = Script::Generate(Prompt(900), 5);
  RunAlone(*engine_, plain);
  EXPECT_EQ(RunAlone(*engine_, plain).results[0].cache.cached_tokens, 900);
  const StreamRecord scored = RunAlone(*engine_, Scored(900, 5));
  ExpectEqual(scored.prompt_logprobs, alone.prompt_logprobs);
  EXPECT_EQ(scored.results[0].cache.cached_tokens, 0);
  EXPECT_EQ(scored.results[0].cache.miss, CacheMiss::kDisabled);
  // What it computes is there for others.
  ASSERT_THAT(RunAlone(*engine_, Scored(900, 5, 3, 9)).prompt_logprobs,
              SizeIs(899));
  const StreamRecord after =
      RunAlone(*engine_, Script::Generate(Prompt(900, 9), 5));
  EXPECT_GT(after.results[0].cache.cached_tokens, 0);
}

TEST_F(EngineScoresTest, ThePromptAloneMayBeTheAnswer) {
  Start();
  const StreamRecord record = RunAlone(*engine_, Scored(kTokens, 0));
  EXPECT_TRUE(record.end->ok()) << *record.end;
  EXPECT_THAT(record.tokens, IsEmpty());
  EXPECT_EQ(record.results[0].completion_tokens, 0);
  EXPECT_EQ(record.results[0].reason, FinishReason::kLength);
  ExpectEqual(record.prompt_logprobs,
              RunAlone(*engine_, Scored(kTokens, 3)).prompt_logprobs);
  // One token predicts nothing.
  const StreamRecord one = RunAlone(*engine_, Scored(1, 0));
  EXPECT_TRUE(one.end->ok());
  EXPECT_THAT(one.prompt_logprobs, IsEmpty());
  // The limit of a sequence is that of the prompt.
  EXPECT_THAT(RunAlone(*engine_, Scored(4000, 0)).prompt_logprobs,
              SizeIs(3999));
}

TEST_F(EngineScoresTest, AReaderThatIsBehindPausesThem) {
  EngineOptions options = OptionsFor(fake_);
  options.max_chunk_tokens = 16;
  Start(options);
  const auto sink = std::make_shared<RecordingSink>([] { return true; });
  const auto id = Submit(*engine_, Scored(kTokens, 3), sink);
  ASSERT_TRUE(id.ok());
  size_t pieces = 0;
  while (!sink->Record().end) {
    if (!sink->TakeStall()) continue;
    ++pieces;
    engine_->Resume(*id);
  }
  const StreamRecord record = sink->WaitEnd();
  EXPECT_EQ(record.violation, "");
  EXPECT_GE(pieces, static_cast<size_t>(kTokens / 16));
  ExpectEqual(record.prompt_logprobs,
              RunSolo(fake_, Scored(kTokens, 3)).prompt_logprobs);
}

// Rows of logits are large: a step has no more of them than a bound, however
// many prompts there are.
TEST_F(EngineScoresTest, AStepHasFewRows) {
  fake_.vocab_size = 1 << 18;  // a mebibyte
  fake_.num_slots = 8;
  EngineOptions options = OptionsFor(fake_);
  options.max_num_batched_tokens = 1024;
  options.max_chunk_tokens = 1024;
  Start(options);
  gate_.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(Submit(*engine_, Scored(40, 1, 0, i), sinks.back()).ok());
  }
  gate_.WaitHeld();
  gate_.Open();
  for (const auto& sink : sinks) {
    EXPECT_THAT(sink->WaitEnd().prompt_logprobs, SizeIs(39));
  }
  EXPECT_LE(most_rows(), 128u + 8u);
  EXPECT_GT(most_rows(), 100u);
}

TEST_F(EngineScoresTest, ContinuationsOfAPromptComeAfterThem) {
  for (const bool cache : {false, true}) {
    SCOPED_TRACE(cache);
    fake_.num_host_blocks = 100;
    EngineOptions options = OptionsFor(fake_);
    options.prefix_cache = cache;
    options.max_chunk_tokens = 16;
    Start(options);
    std::vector<Engine::Submission> all;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 3; ++i) {
      const Script script = Scored(kTokens, 5, i == 0 ? 2 : -1);
      sinks.push_back(std::make_shared<RecordingSink>());
      Engine::Submission submission;
      submission.options = script.options;
      submission.options.sampling.temperature = 1;
      submission.options.sampling.seed = i;
      submission.command = script.commands[0];
      submission.sink = sinks.back();
      submission.sample = i > 0;
      all.push_back(std::move(submission));
    }
    ASSERT_TRUE(
        engine_
            ->SubmitAll(std::move(all), [](auto) { return absl::OkStatus(); })
            .ok());
    const StreamRecord others = sinks[2]->WaitTokens(1);
    EXPECT_THAT(others.tokens, SizeIs(testing::Ge(1)));
    EXPECT_THAT(sinks[0]->Record().prompt_logprobs, SizeIs(kTokens - 1));
    EXPECT_THAT(others.prompt_logprobs, IsEmpty());
    for (const auto& sink : sinks)
      EXPECT_THAT(sink->WaitEnd().tokens, SizeIs(5));
  }
}

TEST_F(EngineScoresTest, BrokenLogitsAndMissingMemoryEndTheirStreamOnly) {
  for (const bool memory : {false, true}) {
    SCOPED_TRACE(memory);
    fake_.broken_token = memory ? -1 : 255;
    fake_.no_logits_on_run = memory ? 1 : 0;
    Start();
    gate_.Hold();
    Script bad = Scored(40, 2);
    for (int32_t& token : bad.commands[0].append) token = token % 200;
    Script good = Script::Generate(bad.commands[0].append, 2);
    bad.commands[0].append[20] = 255;
    const auto first = std::make_shared<RecordingSink>();
    const auto second = std::make_shared<RecordingSink>();
    ASSERT_TRUE(Submit(*engine_, bad, first).ok());
    ASSERT_TRUE(Submit(*engine_, good, second).ok());
    gate_.WaitHeld();
    gate_.Open();
    const absl::Status end = *first->WaitEnd().end;
    if (memory) {
      EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted) << end;
    } else {
      EXPECT_THAT(end, FailsWith(absl::StatusCode::kInternal,
                                 "non-finite logits", "at position 20"));
    }
    EXPECT_TRUE(second->WaitEnd().end->ok());
    EXPECT_TRUE(IsIdle(*engine_));
  }
}

TEST_F(EngineScoresTest, RefusesWhatItCannotDo) {
  Start();
  EXPECT_THAT(RunAlone(*engine_, Scored(3, 1, 21)).end.value(),
              FailsWith(kInvalid, "prompt_logprobs is 21; expected 0 to 20"));
  EXPECT_THAT(RunAlone(*engine_, Scored(3, 1, -2)).end.value(),
              FailsWith(kInvalid, "prompt_logprobs is -2"));
  EXPECT_THAT(ValidateCommand(Scored(3, 1).commands[0], 5, engine_->limits(),
                              "prompt_ids", {}),
              FailsWith(kInvalid,
                        "prompt_logprobs is 3; a prompt that "
                        "continues a state has none"));
  RequestLimits whole = engine_->limits();
  whole.max_prompt_tokens = 300;
  whole.max_scored_prompt = 100;
  EXPECT_TRUE(
      ValidateCommand(Scored(100, 1).commands[0], 0, whole, "prompt", {}).ok());
  EXPECT_THAT(
      ValidateCommand(Scored(101, 1).commands[0], 0, whole, "prompt", {}),
      FailsWith(kInvalid, "prompt has 101 tokens", "as a whole",
                "100 with "
                "prompt_logprobs"));
}

}  // namespace
}  // namespace recurve
