// Steps that are launched before the last one's results are known; on a
// FakeRunner, which fails what is done in another order than it says.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/serving/engine.h"
#include "engine/tokenizer/bytes_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/engine_harness.h"

namespace recurve {
namespace {

class EngineAheadTest : public testing::Test {
 protected:
  EngineAheadTest() {
    fake_.runs_ahead = true;
    fake_.on_run = [this](const StepBatch& batch) {
      fed_ += static_cast<int64_t>(batch.fed.size());
      ++steps_;
    };
  }

  // What the script gives where no step runs ahead.
  StreamRecord Expected(const Script& script) const {
    FakeRunnerOptions plain = fake_;
    plain.runs_ahead = false;
    plain.on_run = nullptr;
    return RunSolo(plain, script);
  }
  void Start() { engine_ = MakeEngine(OptionsFor(fake_), fake_); }

  std::atomic<int64_t> fed_ = 0;
  std::atomic<int64_t> steps_ = 0;
  FakeRunnerOptions fake_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineAheadTest, EveryStepButTheFirstIsFed) {
  Script script = Script::Generate(Prompt(100), 30);
  SamplingParams& sampling = script.options.sampling;
  sampling.temperature = 1;
  sampling.repetition_penalty = 1.3f;
  sampling.frequency_penalty = 0.4f;
  Start();
  const StreamRecord record = RunAlone(*engine_, script);
  EXPECT_EQ(record.violation, "");
  EXPECT_EQ(record.tokens, Expected(script).tokens);
  EXPECT_EQ(fed_, 29);
  EXPECT_EQ(steps_, 30);  // the last token is known to be the last
  EXPECT_TRUE(IsIdle(*engine_));
}

// Who waits for memory takes none from who is about to give it back, which
// would be for a step that cannot be launched ahead.
TEST_F(EngineAheadTest, AQueueDoesNotHoldStepsUp) {
  fake_.num_slots = 2;
  fake_.num_pages = 6;
  Start();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<Script> scripts;
  int64_t drawn_later = 0;
  for (int i = 0; i < 12; ++i) {
    const int count = i == 0 ? 150 : 5 + i;
    scripts.push_back(Script::Generate(Prompt(20 + i, i + 1), count));
    sinks.push_back(std::make_shared<RecordingSink>());
    drawn_later += count - 1;
    ASSERT_TRUE(Submit(*engine_, scripts.back(), sinks.back()).ok());
  }
  for (size_t i = 0; i < scripts.size(); ++i) {
    const StreamRecord record = sinks[i]->WaitEnd();
    EXPECT_EQ(record.violation, "");
    EXPECT_EQ(record.tokens, Expected(scripts[i]).tokens);
  }
  EXPECT_EQ(fed_, drawn_later);
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineAheadTest, AStepBeyondTheEndIsThrownAway) {
  for (uint64_t seed = 1; seed < 30; ++seed) {
    Script script = Script::Generate(Prompt(10, seed), 200);
    script.options.sampling.temperature = 1;
    script.options.sampling.seed = seed;
    script.options.stopping.stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    fed_ = 0;
    Start();
    const StreamRecord record = RunAlone(*engine_, script);
    const StreamRecord expected = Expected(script);
    EXPECT_EQ(record.tokens, expected.tokens);
    ASSERT_EQ(record.results.size(), 1u);
    EXPECT_EQ(record.results[0].reason, expected.results[0].reason);
    EXPECT_TRUE(IsIdle(*engine_));
    EXPECT_EQ(fed_, static_cast<int64_t>(record.tokens.size()) -
                        (record.results[0].reason == FinishReason::kLength));
  }
}

// A state must not have taken in a token that a later command does not follow.
TEST_F(EngineAheadTest, AStreamThatMayStopAndGoOnWaitsForItsTokens) {
  for (const bool may_stop : {true, false}) {
    SCOPED_TRACE(may_stop);
    Script script = Script::Generate(Prompt(20), 20);
    if (may_stop) script.options.stopping.stop_token_ids = {3, 50, 100, 150};
    script.options.sampling.temperature = 1;
    script.options.sampling.repetition_penalty = 1.3f;
    script.commands.push_back({Prompt(5, 2), 20, LogitsMode::kAll});
    script.commands.push_back({{}, 9, LogitsMode::kNone});
    script.commands.push_back({Prompt(40, 3), 0, LogitsMode::kNone});
    script.commands.push_back({{}, 9, LogitsMode::kNone});
    const StreamRecord expected = Expected(script);
    fed_ = 0;
    Start();
    auto sink = std::make_shared<RecordingSink>();
    const auto id = Submit(*engine_, script, sink, /*close_when_done=*/false);
    ASSERT_TRUE(id.ok()) << id.status();
    for (size_t i = 1; i < script.commands.size(); ++i) {
      sink->WaitCommands(i);
      engine_->Extend(*id, script.commands[i]);
    }
    sink->WaitCommands(script.commands.size());
    engine_->Close(*id);
    const StreamRecord record = sink->WaitEnd();
    EXPECT_EQ(record.violation, "");
    EXPECT_EQ(record.tokens, expected.tokens);
    EXPECT_EQ(record.LogitsPositions(), expected.LogitsPositions());
    // With logits no step runs ahead, nor does one behind a command's last. The
    // first token of the last command needs no step.
    EXPECT_EQ(fed_, may_stop ? 0 : 19 + 8 + 7);
    EXPECT_TRUE(IsIdle(*engine_));
  }
}

TEST_F(EngineAheadTest, AStopStringEndsWhatIsUnderWay) {
  const auto tokenizer = *BytesTokenizer::Make(258, 256, 257);
  FakeRunnerOptions plain = fake_;
  plain.runs_ahead = false;
  int stopped = 0;
  for (uint64_t seed = 1; seed < 30; ++seed) {
    Script script = Script::Generate(Prompt(10, seed), 60);
    script.options.sampling.temperature = 1;
    script.options.sampling.seed = seed;
    script.options.stopping.stop_strings = {"a", "Q", "7", "ab", "z"};
    const StreamRecord expected = RunSolo(plain, script, tokenizer.get());
    const auto engine = MakeEngine(OptionsFor(fake_), fake_, tokenizer.get());
    const StreamRecord record = RunAlone(*engine, script);
    EXPECT_EQ(record.violation, "");
    EXPECT_EQ(record.tokens, expected.tokens);
    EXPECT_EQ(record.text, expected.text);
    ASSERT_EQ(record.results.size(), 1u);
    EXPECT_EQ(record.results[0].stop_string, expected.results[0].stop_string);
    stopped += record.results[0].reason == FinishReason::kStopString;
    EXPECT_TRUE(IsIdle(*engine));
  }
  EXPECT_GT(stopped, 5);
}

// A sequence that loses its memory while steps run ahead continues with the
// same tokens, and so do concurrent sequences.
TEST_F(EngineAheadTest, PreemptionWhileStepsRunAhead) {
  for (const int32_t blocks : {0, 64}) {
    SCOPED_TRACE(blocks);
    fake_.num_slots = 2;
    fake_.num_host_blocks = blocks;
    // Steps are released one by one, so that no sequence ends before the next
    // comes.
    StepGate gate;
    gate.Hold();
    fake_.on_run = [this, &gate](const StepBatch& batch) {
      fed_ += static_cast<int64_t>(batch.fed.size());
      gate.Enter(batch);
    };
    Start();
    std::vector<Script> scripts;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (uint64_t i = 0; i < 12; ++i) {
      scripts.push_back(Script::Generate(Prompt(30 + 20 * i, i), 40));
      Script& script = scripts.back();
      script.options.priority = static_cast<int32_t>(i);
      script.options.sampling.temperature = 1;
      script.options.sampling.repetition_penalty = 1.3f;
      sinks.push_back(std::make_shared<RecordingSink>());
      ASSERT_TRUE(Submit(*engine_, script, sinks.back()).ok());
      while (true) {
        gate.WaitHeld();
        if (sinks.back()->Record().tokens.size() >= 3 + i % 4) break;
        gate.Pass();
      }
    }
    gate.Open();
    for (size_t i = 0; i < sinks.size(); ++i) {
      const StreamRecord record = sinks[i]->WaitEnd();
      EXPECT_EQ(record.violation, "");
      EXPECT_EQ(record.tokens, Expected(scripts[i]).tokens);
    }
    const EngineLoad load = engine_->load();
    EXPECT_GT(load.preemptions_total, 0u);
    EXPECT_EQ(load.saves_total > 0, blocks > 0);
    EXPECT_GT(fed_, 0);
    EXPECT_TRUE(IsIdle(*engine_));
    engine_.reset();  // before its gate
  }
}

// Its next token was drawn when the client fell behind, and then its memory was
// taken.
TEST_F(EngineAheadTest, AReaderThatIsBehindLosesItsMemoryAndNoToken) {
  for (const int32_t blocks : {0, 8}) {
    for (const int64_t generate : {2, 20}) {
      SCOPED_TRACE(testing::Message() << blocks << " " << generate);
      fake_.num_slots = 1;
      fake_.num_host_blocks = blocks;
      Start();
      Script script = Script::Generate(Prompt(100), generate);
      script.options.sampling.temperature = 1;
      script.options.sampling.frequency_penalty = 0.5f;
      bool stall = true;
      const auto sink = std::make_shared<RecordingSink>(
          [&stall] { return std::exchange(stall, false); });
      const auto id = Submit(*engine_, script, sink);
      ASSERT_TRUE(id.ok()) << id.status();
      sink->WaitTokens(1);
      const Script other = Script::Generate(Prompt(5), 5);
      EXPECT_EQ(RunAlone(*engine_, other).tokens, Expected(other).tokens);
      EXPECT_EQ(sink->Record().tokens.size(), 1u);
      EXPECT_EQ(engine_->load().preemptions_total, 1u);
      EXPECT_EQ(engine_->load().saves_total, blocks > 0 ? 1u : 0u);
      EXPECT_TRUE(sink->TakeStall());
      engine_->Resume(*id);
      const StreamRecord record = sink->WaitEnd();
      EXPECT_EQ(record.violation, "");
      EXPECT_EQ(record.tokens, Expected(script).tokens);
      EXPECT_TRUE(IsIdle(*engine_));
    }
  }
}

// What a command's end finds out of memory stays there until the next command.
TEST_F(EngineAheadTest, AReaderThatWasBehindMayEndItsCommandWithoutMemory) {
  for (const int32_t blocks : {0, 8}) {
    SCOPED_TRACE(blocks);
    fake_.num_slots = 1;
    fake_.num_host_blocks = blocks;
    Script script = Script::Generate(Prompt(100), 2);
    script.commands.push_back({Prompt(5, 2), 3, LogitsMode::kAll});
    const StreamRecord expected = Expected(script);
    Start();
    bool stall = true;
    const auto sink = std::make_shared<RecordingSink>(
        [&stall] { return std::exchange(stall, false); });
    const auto id = Submit(*engine_, script, sink, /*close_when_done=*/false);
    ASSERT_TRUE(id.ok()) << id.status();
    sink->WaitTokens(1);
    // Takes the slot while the last token of the command is kept back.
    RunAlone(*engine_, Script::Generate(Prompt(5), 5));
    EXPECT_EQ(engine_->load().preemptions_total, 1u);
    EXPECT_TRUE(sink->TakeStall());
    engine_->Resume(*id);
    sink->WaitCommands(1);
    // So long that a step of it would be seen.
    const int64_t steps = steps_;
    const auto other = RunAlone(*engine_, Script::Generate(Prompt(7), 3));
    EXPECT_TRUE(other.end->ok());
    EXPECT_EQ(steps_, steps + 3);
    // Where nothing is saved it had to come back for its last token.
    EXPECT_EQ(engine_->load().preemptions_total, blocks > 0 ? 1u : 2u);
    engine_->Extend(*id, script.commands[1]);
    sink->WaitCommands(2);
    engine_->Close(*id);
    const StreamRecord record = sink->WaitEnd();
    EXPECT_EQ(record.violation, "");
    EXPECT_EQ(record.tokens, expected.tokens);
    EXPECT_EQ(record.LogitsPositions(), expected.LogitsPositions());
    EXPECT_TRUE(IsIdle(*engine_));
  }
}

TEST_F(EngineAheadTest, AReaderThatIsBehindHearsNothing) {
  const Script script = Script::Generate(Prompt(10), 40);
  Start();
  auto sink = std::make_shared<RecordingSink>([] { return true; });
  const auto id = Submit(*engine_, script, sink);
  ASSERT_TRUE(id.ok()) << id.status();
  for (size_t tokens = 1; tokens <= 40; ++tokens) {
    EXPECT_EQ(sink->WaitTokens(tokens).tokens.size(), tokens);
    EXPECT_TRUE(sink->TakeStall());
    engine_->Resume(*id);
  }
  const StreamRecord record = sink->WaitEnd();
  EXPECT_EQ(record.violation, "");
  EXPECT_EQ(record.tokens, Expected(script).tokens);
  EXPECT_GT(fed_, 0);
}

TEST_F(EngineAheadTest, MemoryOfAStepUnderWayIsGivenToOthers) {
  fake_.num_slots = 2;
  fake_.num_pages = 4;
  Start();
  std::vector<Script> scripts;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t i = 0; i < 40; ++i) {
    scripts.push_back(Script::Generate(Prompt(60 + i, i), 1 + i % 20));
    sinks.push_back(std::make_shared<RecordingSink>());
    const auto id = Submit(*engine_, scripts.back(), sinks.back());
    ASSERT_TRUE(id.ok()) << id.status();
    if (i % 5 == 4) {
      sinks.back()->WaitTokens(1 + i % 3);
      engine_->Cancel(*id, absl::CancelledError("the client left"));
    }
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const StreamRecord record = sinks[i]->WaitEnd();
    EXPECT_EQ(record.violation, "");
    const StreamRecord expected = Expected(scripts[i]);
    if (record.end->ok()) {
      EXPECT_EQ(record.tokens, expected.tokens);
    } else {
      EXPECT_EQ(record.end->code(), absl::StatusCode::kCancelled);
    }
  }
  EXPECT_TRUE(engine_->health().ok()) << engine_->health();
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineAheadTest, ADeviceThatFailsWithTwoStepsUnderWay) {
  for (int64_t run = 1; run < 8; ++run) {
    fake_.fail_on_run = run;
    Start();
    const StreamRecord record =
        RunAlone(*engine_, Script::Generate(Prompt(10), 40));
    EXPECT_THAT(*record.end, FailsWith(absl::StatusCode::kInternal,
                                       "the fake device broke"));
    EXPECT_FALSE(engine_->health().ok());
    EXPECT_TRUE(IsIdle(*engine_));
    // Before the record: ThreadSanitizer does not see how a Status is shared.
    engine_.reset();
  }
}

// The next step with it is under way when that is seen; its neighbour does not
// notice.
TEST_F(EngineAheadTest, ARowThatBreaksDownEndsItsStreamAlone) {
  fake_.broken_token = 3;
  Start();
  const Script good = Script::Generate(Prompt(30, 5), 40);
  const auto neighbour = std::make_shared<RecordingSink>();
  ASSERT_TRUE(Submit(*engine_, good, neighbour).ok());
  std::vector<int32_t> prompt = Prompt(10);
  prompt.back() = 3;
  const StreamRecord record = RunAlone(*engine_, Script::Generate(prompt, 40));
  EXPECT_THAT(*record.end,
              FailsWith(absl::StatusCode::kInternal, "non-finite"));
  EXPECT_TRUE(record.tokens.empty());
  EXPECT_EQ(neighbour->WaitEnd().tokens, Expected(good).tokens);
  EXPECT_TRUE(engine_->health().ok());
  EXPECT_TRUE(IsIdle(*engine_));
}

}  // namespace
}  // namespace recurve
