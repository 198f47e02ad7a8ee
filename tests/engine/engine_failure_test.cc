// Devices that fail, clients that do not read, servers that close; on a
// FakeRunner.

#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/engine_harness.h"

namespace recurve {
namespace {

using testing::SizeIs;

constexpr auto kInternal = absl::StatusCode::kInternal;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class EngineFailureTest : public testing::Test {
 protected:
  EngineFailureTest() {
    fake_.on_run = [this](const StepBatch& batch) { gate_.Enter(batch); };
  }
  ~EngineFailureTest() override { gate_.Open(); }

  void Start() { Start(OptionsFor(fake_)); }
  void Start(const EngineOptions& options) {
    engine_ = MakeEngine(options, fake_);
  }
  std::shared_ptr<RecordingSink> Run(const Script& script,
                                     bool close_when_done = true) {
    auto sink = std::make_shared<RecordingSink>();
    const auto id = Submit(*engine_, script, sink, close_when_done);
    EXPECT_TRUE(id.ok()) << id.status();
    if (id.ok()) last_id_ = *id;
    return sink;
  }

  FakeRunnerOptions fake_;
  StepGate gate_;
  std::unique_ptr<Engine> engine_;
  uint64_t last_id_ = 0;
};

TEST_F(EngineFailureTest, ADeviceFailureEndsEveryStreamOnce) {
  fake_.num_slots = 3;
  fake_.fail_on_run = 4;
  Start();
  gate_.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  // Running, waiting for a slot, idle between commands.
  sinks.push_back(Run(Script::Generate(Prompt(5), 0), false));
  gate_.WaitHeld();
  for (uint64_t i = 1; i <= 5; ++i)
    sinks.push_back(Run(Script::Generate(Prompt(80, i), 50)));
  gate_.Pass();
  while (gate_.WaitHeld() < 4) gate_.Pass();
  // Accepted while the step that fails is running.
  sinks.push_back(Run(Script::Generate(Prompt(5), 5)));
  gate_.Open();
  for (const auto& sink : sinks) {
    EXPECT_THAT(*sink->WaitEnd().end,
                FailsWith(kInternal, "the fake device broke"));
  }
  EXPECT_FALSE(engine_->health().ok());
  EXPECT_TRUE(IsIdle(*engine_));
  const auto refused = std::make_shared<RecordingSink>();
  EXPECT_THAT(Submit(*engine_, Script::Generate({1}, 1), refused).status(),
              FailsWith(kUnavailable, "the fake device broke"));
  engine_.reset();
  for (const auto& sink : sinks) EXPECT_EQ(sink->Record().violation, "");
  EXPECT_EQ(refused->Record().ends, 0);
  EXPECT_EQ(gate_.steps(), 4);
}

TEST_F(EngineFailureTest, ABrokenRowEndsItsOwnStreamOnly) {
  fake_.broken_token = 255;
  for (const float broken_logit : {std::numeric_limits<float>::quiet_NaN(),
                                   std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(broken_logit);
    fake_.broken_logit = broken_logit;
    Start();
    gate_.Hold();
    const Script good = Script::Generate(Prompt(70), 40);
    std::vector<int32_t> bad = Prompt(30, 2);
    bad.back() = 255;
    const auto first = Run(good);
    const auto broken = Run(Script::Generate(bad, 40));
    const auto second = Run(good);
    // Rows that are returned and not drawn from count as much.
    const auto rows = Run(Script::Generate(bad, 0, LogitsMode::kNext));
    gate_.WaitHeld();
    gate_.Open();
    const std::vector<int32_t> expected = RunSolo(fake_, good).tokens;
    EXPECT_EQ(first->WaitEnd().tokens, expected);
    EXPECT_EQ(second->WaitEnd().tokens, expected);
    for (const auto& sink : {broken, rows}) {
      EXPECT_THAT(*sink->WaitEnd().end, FailsWith(kInternal, "finite"));
      EXPECT_TRUE(sink->Record().tokens.empty());
      EXPECT_TRUE(sink->Record().logits.empty());
    }
    EXPECT_TRUE(engine_->health().ok());
    EXPECT_TRUE(RunAlone(*engine_, good).end->ok());
    EXPECT_TRUE(IsIdle(*engine_));
    // Before the records: ThreadSanitizer does not see how a Status is shared.
    engine_.reset();
  }
}

// To be told -inf is to be told that a token cannot be drawn.
TEST_F(EngineFailureTest, RowsMayHoldMinusInfinity) {
  fake_.broken_token = 255;
  fake_.broken_logit = -std::numeric_limits<float>::infinity();
  Start();
  std::vector<int32_t> prompt = Prompt(30);
  prompt.back() = 255;
  const StreamRecord record =
      RunAlone(*engine_, Script::Generate(prompt, 0, LogitsMode::kNext));
  EXPECT_TRUE(record.end->ok()) << *record.end;
  EXPECT_THAT(record.logits, SizeIs(1));
}

TEST_F(EngineFailureTest, NoMemoryForLogitsEndsThoseThatWantThem) {
  fake_.no_logits_on_run = 2;
  Start();
  gate_.Hold();
  const Script plain = Script::Generate(Prompt(70), 40);
  const Script wants = Script::Generate(Prompt(30, 2), 10, LogitsMode::kNext);
  const auto first = Run(plain);
  gate_.WaitHeld();
  // In the second step, all of them.
  const auto second = Run(plain);
  const auto next = Run(wants);
  const auto all = Run(Script::Generate(Prompt(30, 3), 0, LogitsMode::kAll));
  gate_.Open();
  const std::vector<int32_t> expected = RunSolo(fake_, plain).tokens;
  EXPECT_EQ(first->WaitEnd().tokens, expected);
  EXPECT_EQ(second->WaitEnd().tokens, expected);
  for (const auto& sink : {next, all}) {
    EXPECT_THAT(*sink->WaitEnd().end,
                FailsWith(absl::StatusCode::kResourceExhausted,
                          "no memory for logits"));
    EXPECT_TRUE(sink->Record().tokens.empty());
    EXPECT_TRUE(sink->Record().logits.empty());
  }
  EXPECT_TRUE(engine_->health().ok());
  // The next one may have them.
  const StreamRecord later = RunAlone(*engine_, wants);
  EXPECT_TRUE(later.end->ok());
  EXPECT_THAT(later.logits, SizeIs(10));
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineFailureTest, AStalledStreamRestsUntilItIsResumed) {
  Start();
  const auto sink = std::make_shared<RecordingSink>([] { return true; });
  const Script script = Script::Generate(Prompt(10), 4);
  const auto id = Submit(*engine_, script, sink);
  for (size_t tokens = 1; tokens < 4; ++tokens) {
    EXPECT_THAT(sink->WaitTokens(tokens).tokens, SizeIs(tokens));
    // The load is published when the step's streams have been told.
    while (engine_->load().resident != 1) std::this_thread::yield();
    // A step more would be a breach that the sink notices.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(engine_->load().resident, 1);
    EXPECT_TRUE(sink->TakeStall());
    engine_->Resume(*id);
  }
  EXPECT_EQ(sink->WaitEnd().tokens, RunSolo(fake_, script).tokens);
  EXPECT_EQ(sink->Record().violation, "");
}

TEST_F(EngineFailureTest, AStalledStreamYieldsItsMemoryAndLosesNothing) {
  fake_.num_slots = 1;
  Start();
  bool stall = true;
  const auto sink = std::make_shared<RecordingSink>(
      [&stall] { return std::exchange(stall, false); });
  const Script script = Script::Generate(Prompt(100), 20);
  const auto id = Submit(*engine_, script, sink);
  sink->WaitTokens(1);
  EXPECT_TRUE(RunAlone(*engine_, Script::Generate(Prompt(5), 5)).end->ok());
  EXPECT_EQ(engine_->load().preemptions_total, 1u);
  EXPECT_TRUE(sink->TakeStall());
  engine_->Resume(*id);
  const StreamRecord record = sink->WaitEnd();
  EXPECT_EQ(record.tokens, RunSolo(fake_, script).tokens);
  EXPECT_EQ(record.results[0].preemptions, 1);
}

TEST_F(EngineFailureTest, AClientThatReadsNothingIsEnded) {
  EngineOptions options = OptionsFor(fake_);
  options.stalled_client_timeout = std::chrono::milliseconds(150);
  Start(options);
  const auto stalled = std::make_shared<RecordingSink>([] { return true; });
  ASSERT_TRUE(Submit(*engine_, Script::Generate(Prompt(10), 9), stalled).ok());
  // Idle is not stalled: this one is left alone.
  const auto idle = Run(Script::Generate(Prompt(10), 2), false);
  const StreamRecord record = stalled->WaitEnd();
  EXPECT_THAT(*record.end,
              FailsWith(absl::StatusCode::kResourceExhausted, "150 ms"));
  EXPECT_EQ(record.violation, "");
  EXPECT_EQ(engine_->load().open, 1);
  EXPECT_FALSE(idle->Record().end);
}

TEST_F(EngineFailureTest, DrainRefusesNewWorkAndFinishesWhatRuns) {
  fake_.num_slots = 2;
  Start();
  EXPECT_FALSE(engine_->draining());
  const auto idle = Run(Script::Generate(Prompt(10), 2), false);
  idle->WaitCommands(1);
  gate_.Hold();
  const Script script = Script::Generate(Prompt(10), 30);
  const auto runs = Run(script);
  const auto waits = Run(script);
  const auto decode = Run(script, /*close_when_done=*/false);
  gate_.WaitHeld();
  EXPECT_EQ(engine_->Drain(), 4);
  EXPECT_TRUE(engine_->draining());
  EXPECT_THAT(
      Submit(*engine_, script, std::make_shared<RecordingSink>()).status(),
      FailsWith(kUnavailable, "draining"));
  gate_.Open();
  EXPECT_THAT(*idle->WaitEnd().end, FailsWith(kUnavailable, "draining"));
  EXPECT_TRUE(runs->WaitEnd().end->ok());
  EXPECT_TRUE(waits->WaitEnd().end->ok());
  const StreamRecord last = decode->WaitEnd();
  EXPECT_THAT(last.tokens, SizeIs(30));
  EXPECT_THAT(last.results, SizeIs(1));
  EXPECT_THAT(*last.end, FailsWith(kUnavailable, "draining"));
  EXPECT_EQ(engine_->Drain(), 0);
  EXPECT_TRUE(IsIdle(*engine_));
  EXPECT_TRUE(engine_->health().ok());
}

TEST_F(EngineFailureTest, TheDestructorEndsEverything) {
  fake_.num_slots = 2;
  // 3000 of them take far longer than the destructor to begin.
  fake_.step_time = std::chrono::milliseconds(1);
  Start();
  const auto idle = Run(Script::Generate(Prompt(10), 2), false);
  idle->WaitCommands(1);
  gate_.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks = {idle};
  for (int i = 0; i < 3; ++i)
    sinks.push_back(Run(Script::Generate(Prompt(10), 3000)));
  gate_.WaitHeld();
  sinks.push_back(Run(Script::Generate(Prompt(10), 3000)));  // never seen
  gate_.Open();
  engine_.reset();
  for (const auto& sink : sinks) {
    const StreamRecord record = sink->Record();
    ASSERT_TRUE(record.end);
    EXPECT_THAT(*record.end, FailsWith(kUnavailable, "shutting down"));
    EXPECT_EQ(record.violation, "");
  }
}

TEST_F(EngineFailureTest, TheAgeOfAStepCanBeSeen) {
  Start();
  EXPECT_EQ(engine_->step_age_seconds(), 0);
  gate_.Hold();
  const auto sink = Run(Script::Generate(Prompt(10), 2));
  gate_.WaitHeld();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GE(engine_->step_age_seconds(), 0.03);
  gate_.Open();
  sink->WaitEnd();
}

}  // namespace
}  // namespace recurve
