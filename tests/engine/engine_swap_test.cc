// Sequences that lose their memory and get it back from the host's, on a
// FakeRunner, whose tokens change with any mistake in memory.

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"

namespace recurve {
namespace {

Script WithPriority(Script script, int32_t priority) {
  script.options.priority = priority;
  return script;
}

class EngineSwapTest : public testing::Test {
 protected:
  EngineSwapTest() {
    fake_.num_slots = 1;  // so that any new sequence takes the memory
    fake_.num_host_blocks = 8;
    fake_.on_run = [this](const StepBatch& batch) {
      computed_ += batch.num_tokens();
      gate_.Enter(batch);
    };
  }
  ~EngineSwapTest() override { gate_.Open(); }

  void Start() {
    engine_ = MakeEngine(OptionsFor(fake_), fake_);
    gate_.Hold();
  }

  std::shared_ptr<RecordingSink> Run(const Script& script,
                                     bool close_when_done = true) {
    auto sink = std::make_shared<RecordingSink>();
    const auto id = Submit(*engine_, script, sink, close_when_done);
    EXPECT_TRUE(id.ok()) << id.status();
    if (id.ok()) last_id_ = *id;
    return sink;
  }

  // Runs `low` for a few steps, then has `high` take its memory; stops the
  // second step of `high`.
  std::pair<std::shared_ptr<RecordingSink>, std::shared_ptr<RecordingSink>>
  Preempt(const Script& low, const Script& high) {
    const auto first = Run(low);
    low_id_ = last_id_;
    PassSteps(5);
    const auto second = Run(high);
    PassSteps(2);
    return {first, second};
  }
  void PassSteps(int count) {
    for (gate_.WaitHeld(); count > 0; --count) {
      gate_.Pass();
      gate_.WaitHeld();
    }
  }

  FakeRunnerOptions fake_;
  StepGate gate_;
  std::unique_ptr<Engine> engine_;
  uint64_t last_id_ = 0;
  uint64_t low_id_ = 0;
  std::atomic<int64_t> computed_ = 0;
  const Script low_ = Script::Generate(Prompt(150, 1), 100);
  const Script high_ = WithPriority(Script::Generate(Prompt(20, 2), 10), 1);
};

TEST_F(EngineSwapTest, NothingIsComputedTwice) {
  Start();
  const auto [low, high] = Preempt(low_, high_);
  EXPECT_EQ(engine_->load().swap_bytes_total, 8 * 512);
  EXPECT_EQ(engine_->load().swap_bytes_used, 4 * 512);  // 3 pages and the slot
  gate_.Open();
  EXPECT_EQ(low->WaitEnd().tokens, RunSolo(fake_, low_).tokens);
  EXPECT_EQ(high->WaitEnd().tokens, RunSolo(fake_, high_).tokens);
  // The last token of each is not computed.
  EXPECT_EQ(computed_, 150 + 99 + 20 + 9);
  const EngineLoad load = engine_->load();
  EXPECT_EQ(load.preemptions_total, 1u);
  EXPECT_EQ(load.saves_total, 1u);
  EXPECT_EQ(load.restores_total, 1u);
  EXPECT_EQ(load.recomputes_total, 0u);
  EXPECT_EQ(low->Record().results[0].preemptions, 1);
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineSwapTest, WithoutRoomItIsComputedAgain) {
  fake_.num_host_blocks = 3;
  Start();
  const auto [low, high] = Preempt(low_, high_);
  gate_.Open();
  EXPECT_EQ(low->WaitEnd().tokens, RunSolo(fake_, low_).tokens);
  EXPECT_TRUE(high->WaitEnd().end->ok());
  EXPECT_GT(computed_, 150 + 99 + 20 + 9 + 150);
  EXPECT_EQ(engine_->load().saves_total, 0u);
  EXPECT_EQ(engine_->load().recomputes_total, 1u);
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineSwapTest, CancelledWhileSaved) {
  Start();
  const auto [low, high] = Preempt(low_, high_);
  engine_->Cancel(low_id_, absl::CancelledError("the client left"));
  gate_.Open();
  EXPECT_EQ(low->WaitEnd().end->code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(high->WaitEnd().end->ok());
  EXPECT_EQ(engine_->load().saves_total, 1u);
  EXPECT_EQ(engine_->load().restores_total, 0u);
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineSwapTest, TheEngineEndsWhileSomeAreSaved) {
  Start();
  const auto [low, high] = Preempt(low_, high_);
  gate_.Open();
  engine_.reset();
  EXPECT_TRUE(low->Record().end);
  EXPECT_TRUE(high->Record().end);
}

TEST_F(EngineSwapTest, StepsGoOnWhileACopyArrives) {
  fake_.num_slots = 2;
  fake_.restore_steps = 5;
  int alone = 0;
  fake_.on_run = [&](const StepBatch& batch) {
    alone += batch.num_sequences() == 1 && engine_->load().restores_total == 1;
    computed_ += batch.num_tokens();
    gate_.Enter(batch);
  };
  Start();
  const Script always = WithPriority(Script::Generate(Prompt(9, 3), 200), 1);
  const auto running = Run(always);
  const auto [low, high] = Preempt(low_, high_);
  gate_.Open();
  EXPECT_EQ(high->WaitEnd().tokens, RunSolo(fake_, high_).tokens);
  EXPECT_EQ(low->WaitEnd().tokens, RunSolo(fake_, low_).tokens);
  EXPECT_EQ(running->WaitEnd().tokens, RunSolo(fake_, always).tokens);
  EXPECT_EQ(engine_->load().restores_total, 1u);
  EXPECT_GE(alone, 4);
  EXPECT_EQ(computed_, 150 + 99 + 20 + 9 + 9 + 199);
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineSwapTest, OneThatStallsIsSavedAndComesBack) {
  Start();
  gate_.Open();
  bool stall = true;
  const auto low = std::make_shared<RecordingSink>(
      [&stall] { return std::exchange(stall, false); });
  const auto id = Submit(*engine_, low_, low);
  low->WaitTokens(1);
  EXPECT_TRUE(RunAlone(*engine_, Script::Generate(Prompt(5, 2), 5)).end->ok());
  EXPECT_EQ(engine_->load().saves_total, 1u);
  EXPECT_EQ(engine_->load().swap_bytes_used, 4 * 512);
  engine_->Resume(*id);
  EXPECT_EQ(low->WaitEnd().tokens, RunSolo(fake_, low_).tokens);
  EXPECT_EQ(engine_->load().restores_total, 1u);
  EXPECT_TRUE(IsIdle(*engine_));
}

// Behind a step that ends a command nothing is planned for its sequence, and
// yet there may be something to run when that step is done: no step waits for a
// copy ahead of that.
TEST_F(EngineSwapTest, NoStepAheadWaitsForACopy) {
  fake_.num_slots = 2;
  fake_.restore_steps = 5;
  fake_.runs_ahead = true;
  int before = 0;  // steps since the copy began, and `low` is in none
  bool back = false;
  fake_.on_run = [&](const StepBatch& batch) {
    if (engine_->load().restores_total == 1) {
      // No other sequence is as long by then.
      back |= *std::max_element(batch.positions.begin(),
                                batch.positions.end()) >= 150;
      before += !back;
    }
    gate_.Enter(batch);
  };
  Start();
  Script often = WithPriority(Script::Generate(Prompt(9, 3), 2), 1);
  for (int i = 0; i < 80; ++i)
    often.commands.push_back({{}, 2, LogitsMode::kNone});
  const auto running = Run(often, /*close_when_done=*/false);
  for (size_t i = 1; i < often.commands.size(); ++i)
    engine_->Extend(last_id_, often.commands[i]);
  engine_->Close(last_id_);
  const auto [low, high] = Preempt(low_, high_);
  gate_.Open();
  EXPECT_EQ(high->WaitEnd().tokens, RunSolo(fake_, high_).tokens);
  EXPECT_EQ(low->WaitEnd().tokens, RunSolo(fake_, low_).tokens);
  EXPECT_EQ(running->WaitEnd().tokens, RunSolo(fake_, often).tokens);
  EXPECT_EQ(engine_->load().restores_total, 1u);
  EXPECT_GE(before, 3);
  EXPECT_TRUE(IsIdle(*engine_));
}

}  // namespace
}  // namespace recurve
