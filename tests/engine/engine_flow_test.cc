// Flows that share an engine, short prompts among long ones, calls with a
// deadline; on a FakeRunner.

#include <chrono>
#include <memory>
#include <vector>

#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/engine_harness.h"

namespace recurve {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const Flow kA = {1, 1, 0.5};
const Flow kB = {2, 1, 0.5};

class EngineFlowTest : public testing::Test {
 protected:
  EngineFlowTest() {
    fake_.num_slots = 4;
    fake_.on_run = [this](const StepBatch& batch) { gate_.Enter(batch); };
  }
  ~EngineFlowTest() override { gate_.Open(); }

  void Start() {
    EngineOptions options = OptionsFor(fake_);
    options.max_queued_requests = 12;
    Start(options);
  }
  void Start(const EngineOptions& options) {
    engine_ = MakeEngine(options, fake_);
  }
  struct Run {
    absl::StatusOr<uint64_t> id;
    std::shared_ptr<RecordingSink> sink;
    Script script;
  };
  Run Submit(const Flow& flow, int64_t prompt, int64_t generate,
             bool close_when_done = true,
             std::optional<Clock::time_point> deadline = std::nullopt) {
    Script script = Script::Generate(Prompt(prompt, ++seed_), generate);
    script.options.flow = flow;
    auto sink = std::make_shared<RecordingSink>();
    auto id = engine_->Submit({script.options, script.commands.front(),
                               close_when_done, sink, deadline});
    return {std::move(id), sink, script};
  }

  FakeRunnerOptions fake_;
  StepGate gate_;
  std::unique_ptr<Engine> engine_;
  uint64_t seed_ = 0;
};

TEST_F(EngineFlowTest, OneFlowDoesNotFillTheQueueOfAnother) {
  Start();
  gate_.Hold();
  std::vector<Run> runs;
  for (int i = 0; i < 12; ++i) {
    runs.push_back(Submit(kA, 5, 3));
    ASSERT_TRUE(runs.back().id.ok()) << i;
  }
  EXPECT_THAT(Submit(kA, 5, 3).id.status(), FailsWith(kExhausted, "yours"));
  for (int i = 0; i < 4; ++i) {
    runs.push_back(Submit(kB, 5, 3));
    EXPECT_TRUE(runs.back().id.ok()) << i;
  }
  EXPECT_THAT(Submit(kB, 5, 3).id.status(), FailsWith(kExhausted, "12"));
  gate_.Open();
  for (const Run& run : runs) EXPECT_TRUE(run.sink->WaitEnd().end->ok());
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineFlowTest, IdleSequencesDoNotFillTheQueue) {
  Start();
  std::vector<Run> idle;
  for (int i = 0; i < 64; ++i) {
    idle.push_back(Submit(Flow(), 5, 1, /*close_when_done=*/false));
    ASSERT_TRUE(idle.back().id.ok()) << i << idle.back().id.status();
    idle.back().sink->WaitCommands(1);
  }
  EXPECT_THAT(Submit(Flow(), 5, 1).id.status(),
              FailsWith(kExhausted, "64 requests are open"));
  engine_->Close(*idle[7].id);
  EXPECT_TRUE(idle[7].sink->WaitEnd().end->ok());
  EXPECT_TRUE(Submit(Flow(), 5, 1).sink->WaitEnd().end->ok());
  // They go on, all of them, also where the queue is full.
  for (const Run& run : idle) {
    if (&run != &idle[7]) engine_->Extend(*run.id, {{1, 2}, 2});
  }
  for (const Run& run : idle) {
    if (&run == &idle[7]) continue;
    EXPECT_EQ(run.sink->WaitCommands(2).tokens.size(), 3u);
    engine_->Close(*run.id);
    EXPECT_TRUE(run.sink->WaitEnd().end->ok());
  }
  EXPECT_TRUE(IsIdle(*engine_));
}

// Steps and memory are shared, regardless of the order and amount of arrivals.
TEST_F(EngineFlowTest, AFloodLeavesAnotherFlowItsHalf) {
  fake_.num_slots = 8;
  Start(OptionsFor(fake_));
  gate_.Hold();
  std::vector<Run> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(Submit(kA, 20, 30));
  for (int i = 0; i < 10; ++i) {
    gate_.WaitHeld();
    gate_.Pass();
  }
  gate_.WaitHeld();
  const auto tokens = [](const std::vector<Run>& runs) {
    size_t count = 0;
    for (const Run& run : runs) count += run.sink->Record().tokens.size();
    return count;
  };
  const size_t before = tokens(flood);
  std::vector<Run> few;
  for (int i = 0; i < 12; ++i) few.push_back(Submit(kB, 20, 30));
  const int64_t begun = gate_.steps();
  size_t of_flood = 0;
  while (few[0].sink->Record().tokens.empty()) {
    gate_.Pass();
    gate_.WaitHeld();
  }
  EXPECT_LE(gate_.steps() - begun, 3);  // to its first token
  while (!few[7].sink->Record().end) {
    gate_.Pass();
    gate_.WaitHeld();
  }
  of_flood = tokens(flood) - before;
  const size_t of_few = tokens(few);
  EXPECT_GE(static_cast<double>(of_few),
            0.45 * static_cast<double>(of_few + of_flood));
  gate_.Open();
  for (const std::vector<Run>* runs : {&flood, &few}) {
    for (const Run& run : *runs) {
      EXPECT_EQ(run.sink->WaitEnd().tokens, RunSolo(fake_, run.script).tokens);
    }
  }
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineFlowTest, LoadIsKnownByFlow) {
  Start();
  gate_.Hold();
  std::vector<Run> runs;
  runs.push_back(Submit(kA, 5, 3));
  // The engine admits nothing while its step is held.
  gate_.WaitHeld();
  for (int i = 0; i < 5; ++i) runs.push_back(Submit(kA, 5, 3));
  runs.push_back(Submit(kB, 5, 3));
  EXPECT_EQ(engine_->load_of(kA.id).running, 1);
  EXPECT_EQ(engine_->load_of(kA.id).waiting, 5);
  EXPECT_EQ(engine_->load_of(kB.id).running, 0);
  EXPECT_EQ(engine_->load_of(kB.id).waiting, 1);
  while (engine_->load_of(kB.id).running == 0) {
    gate_.Pass();
    gate_.WaitHeld();
  }
  EXPECT_EQ(engine_->load_of(kB.id).waiting, 0);
  EXPECT_EQ(engine_->load_of(7).running, 0);
  gate_.Open();
  for (const Run& run : runs) EXPECT_TRUE(run.sink->WaitEnd().end->ok());
  EXPECT_TRUE(IsIdle(*engine_));
  EXPECT_EQ(engine_->load_of(kA.id).running, 0);
  EXPECT_EQ(engine_->load_of(kA.id).waiting, 0);
}

// However many long ones were there first, and however few are looked at.
TEST_F(EngineFlowTest, AShortPromptPassesLongOnes) {
  fake_.num_pages = 4096;
  EngineOptions options = OptionsFor(fake_);
  options.max_num_batched_tokens = options.max_chunk_tokens = 128;
  Start(options);
  gate_.Hold();
  std::vector<Run> runs;
  for (int i = 0; i < 60; ++i) runs.push_back(Submit(Flow(), 2000, 2));
  gate_.WaitHeld();
  const Run brief = Submit(Flow(), 10, 1);
  const int64_t begun = gate_.steps();
  while (brief.sink->Record().tokens.empty()) {
    gate_.Pass();
    gate_.WaitHeld();
  }
  EXPECT_LE(gate_.steps() - begun, 3);
  gate_.Open();
  runs.push_back(brief);
  for (const Run& run : runs) {
    EXPECT_EQ(run.sink->WaitEnd().tokens, RunSolo(fake_, run.script).tokens);
  }
}

TEST_F(EngineFlowTest, WhatCannotBeDoneInTimeIsRefusedOrEnds) {
  fake_.num_slots = 1;
  fake_.step_time = std::chrono::milliseconds(1);
  fake_.num_pages = 4096;
  Start(OptionsFor(fake_));
  // Nothing is known, and nothing else is there.
  EXPECT_TRUE(Submit(Flow(), 5, 30, true, Clock::now()).id.ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(Submit(Flow(), 5, 30).sink->WaitEnd().end->ok());
  }
  const Run running = Submit(Flow(), 5, 100'000);
  running.sink->WaitTokens(1);
  const auto in = [](int ms) {
    return Clock::now() + std::chrono::milliseconds(ms);
  };
  const absl::Status late = Submit(Flow(), 5, 30, true, in(10)).id.status();
  EXPECT_THAT(late, FailsWith(kExhausted, "the wait is about"));
  EXPECT_TRUE(IsTooLate(late));
  // The wait is longer than was to be expected.
  const Run waits = Submit(Flow(), 5, 30, true, in(3000));
  ASSERT_TRUE(waits.id.ok()) << waits.id.status();
  EXPECT_THAT(
      *waits.sink->WaitEnd().end,
      FailsWith(absl::StatusCode::kDeadlineExceeded, "after a wait of"));
  engine_->CancelAll(absl::CancelledError("the test is over"));
  running.sink->WaitEnd();
  EXPECT_TRUE(IsIdle(*engine_));
}

}  // namespace
}  // namespace recurve
