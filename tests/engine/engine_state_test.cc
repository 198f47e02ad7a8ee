// States of sequences in the engine, on a FakeRunner, whose tokens change with
// any mistake in memory: what goes on from a state gives the tokens and logits
// of the sequence itself.

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using testing::HasSubstr;

struct StateConfig {
  int64_t chunk_multiple;
  bool runs_ahead;
  bool pages;
};

class EngineStateTest : public testing::TestWithParam<StateConfig> {
 protected:
  // A sequence that is driven command by command.
  class Driven {
   public:
    explicit Driven(Engine& engine, SequenceStatePtr from = nullptr,
                    uint32_t flow = 0)
        : engine_(engine), from_(std::move(from)) {
      options_.flow.id = flow;
    }

    // What the command alone brought.
    StreamRecord Run(Command command) {
      const StreamRecord before = sink_->Record();
      if (id_ == 0) {
        Engine::Submission first{options_, std::move(command),
                                 /*close_when_done=*/false, sink_};
        first.from = std::exchange(from_, nullptr);
        const auto id = engine_.Submit(std::move(first));
        EXPECT_TRUE(id.ok()) << id.status();
        id_ = *id;
      } else {
        engine_.Extend(id_, std::move(command));
      }
      StreamRecord record = sink_->WaitCommands(before.results.size() + 1);
      EXPECT_EQ(record.violation, "");
      record.tokens.erase(
          record.tokens.begin(),
          record.tokens.begin() + static_cast<int64_t>(before.tokens.size()));
      record.logits.erase(
          record.logits.begin(),
          record.logits.begin() + static_cast<int64_t>(before.logits.size()));
      return record;
    }
    void Finish() {
      engine_.Close(id_);
      const StreamRecord record = sink_->WaitEnd();
      EXPECT_TRUE(record.end->ok()) << *record.end;
    }
    uint64_t id() const { return id_; }

   private:
    Engine& engine_;
    SequenceOptions options_;
    SequenceStatePtr from_;
    std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
    uint64_t id_ = 0;
  };

  EngineStateTest() {
    fake_.num_slots = 4;
    fake_.num_pages = GetParam().pages ? 200 : 0;
    fake_.num_host_blocks = 400;
    fake_.chunk_multiple = GetParam().chunk_multiple;
    fake_.runs_ahead = GetParam().runs_ahead;
    engine_ = Make();
  }

  std::unique_ptr<Engine> Make() {
    EngineOptions options = OptionsFor(fake_);
    options.prefix_cache = true;
    options.state_bytes = 200 * 512;
    return MakeEngine(options, fake_);
  }

  static absl::StatusOr<SequenceStatePtr> Take(
      Engine& engine, uint64_t id, std::optional<int64_t> at = std::nullopt,
      uint32_t flow = 0) {
    std::promise<absl::StatusOr<SequenceStatePtr>> promise;
    auto future = promise.get_future();
    engine.TakeState(flow, id, at,
                     [&](auto state) { promise.set_value(std::move(state)); });
    return future.get();
  }
  static absl::StatusOr<SequenceStatePtr> MakeState(Engine& engine,
                                                    SequenceState state,
                                                    int64_t computed) {
    std::promise<absl::StatusOr<SequenceStatePtr>> promise;
    auto future = promise.get_future();
    engine.MakeState(std::move(state), computed,
                     [&](auto made) { promise.set_value(std::move(made)); });
    return future.get();
  }

  static Command Append(std::vector<int32_t> tokens, int64_t generate = 0) {
    Command command;
    command.append = std::move(tokens);
    command.generate = generate;
    if (generate > 0) command.logits = LogitsMode::kNext;
    return command;
  }

  static void ExpectSame(const StreamRecord& got, const StreamRecord& want) {
    EXPECT_EQ(got.tokens, want.tokens);
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t i = 0; i < got.logits.size(); ++i) {
      EXPECT_EQ(got.logits[i].position, want.logits[i].position);
      EXPECT_EQ(got.logits[i].values, want.logits[i].values) << i;
    }
  }

  // Nothing is left but what the prefix cache has.
  static void ExpectNoStates(Engine& engine) {
    EXPECT_TRUE(IsIdle(engine));
    EXPECT_EQ(engine.states().totals().states, 0);
    EXPECT_EQ(engine.states().totals().bytes, 0);
  }

  FakeRunnerOptions fake_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineStateTest, GoesOnAsTheSequenceItself) {
  for (const int64_t prompt : {1, 31, 33, 64, 65, 129, 500}) {
    SCOPED_TRACE(prompt);
    Driven sequence(*engine_);
    sequence.Run(Append(Prompt(prompt, 1), 7));
    const auto state = Take(*engine_, sequence.id());
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->num_tokens(), prompt + 7);
    EXPECT_EQ((*state)->computed.tokens, prompt + 6);
    const StreamRecord want = sequence.Run(Append(Prompt(40, 2), 6));
    const StreamRecord next = sequence.Run(Append(Prompt(5, 3), 6));
    sequence.Finish();
    for (int round = 0; round < 2; ++round) {  // a state can be used again
      Driven other(*engine_, *state);
      const StreamRecord got = other.Run(Append(Prompt(40, 2), 6));
      ExpectSame(got, want);
      EXPECT_EQ(got.results[0].prompt_tokens, prompt + 7 + 40);
      EXPECT_EQ(got.results[0].cache.cached_tokens, prompt + 6);
      ExpectSame(other.Run(Append(Prompt(5, 3), 6)), next);
      other.Finish();
    }
  }
  ExpectNoStates(*engine_);
}

// Cut at any token, it is what the sequence was when it had these.
TEST_P(EngineStateTest, IsCutAtAnyToken) {
  constexpr int64_t kGenerated = 20;
  for (const int64_t prompt : {1, 40, 300}) {
    Driven sequence(*engine_);
    const StreamRecord all =
        sequence.Run(Append(Prompt(prompt, 1), kGenerated));
    const auto state = Take(*engine_, sequence.id());
    ASSERT_TRUE(state.ok()) << state.status();
    sequence.Finish();
    for (const int64_t of_output : {0, 1, 7, 19}) {
      SCOPED_TRACE(testing::Message() << prompt << " + " << of_output);
      const auto cut = engine_->CutState(**state, prompt + of_output, "at");
      ASSERT_TRUE(cut.ok()) << cut.status();
      EXPECT_EQ((*cut)->num_tokens(), prompt + of_output);
      EXPECT_LT((*cut)->computed.tokens, prompt + of_output);
      Driven other(*engine_, *cut);
      const StreamRecord got = other.Run(Append({}, kGenerated - of_output));
      EXPECT_EQ(got.tokens, std::vector<int32_t>(all.tokens.begin() + of_output,
                                                 all.tokens.end()));
      other.Finish();
    }
    // In the prompt: as that prompt.
    if (prompt == 300) {
      const auto cut = engine_->CutState(**state, 200, "at");
      ASSERT_TRUE(cut.ok()) << cut.status();
      std::vector<int32_t> first = Prompt(prompt, 1);
      first.resize(200);
      Driven other(*engine_, *cut);
      EXPECT_EQ(other.Run(Append({}, 6)).tokens,
                RunSolo(fake_, Script::Generate(first, 6)).tokens);
      other.Finish();
    }
    for (const int64_t at : {int64_t{0}, prompt + kGenerated + 1}) {
      const auto cut = engine_->CutState(**state, at, "at");
      EXPECT_TRUE(absl::IsOutOfRange(cut.status()));
      EXPECT_THAT(std::string(cut.status().message()),
                  HasSubstr(absl::StrCat("at is ", at, "; expected 1 to ",
                                         prompt + kGenerated)));
    }
  }
  ExpectNoStates(*engine_);
}

// A state after which nothing was generated: the row of its last token is
// computed again.
TEST_P(EngineStateTest, DrawsAfterAppendedTokens) {
  for (const int64_t prompt : {1, 31, 33, 64, 65, 129, 500}) {
    SCOPED_TRACE(prompt);
    const StreamRecord want =
        RunSolo(fake_, Script::Generate(Prompt(prompt, 1), 6));
    Driven sequence(*engine_);
    sequence.Run(Append(Prompt(prompt, 1)));
    const auto state = Take(*engine_, sequence.id());
    ASSERT_TRUE(state.ok()) << state.status();
    sequence.Finish();
    Driven drawing(*engine_, *state);
    const StreamRecord got = drawing.Run(Append({}, 6));
    EXPECT_EQ(got.tokens, want.tokens);
    // As if the prompt had come as one command, which it did.
    if (prompt > 128) {
      EXPECT_GT(got.results[0].cache.cached_tokens, prompt - 65);
    }
    drawing.Finish();
  }
  ExpectNoStates(*engine_);
}

// The first token comes from the logits of the state, before there is memory.
TEST_P(EngineStateTest, DrawsFromLogitsThatWereKept) {
  for (const int64_t tokens :
       {kMinAppendedEndTokens, int64_t{300}, int64_t{512}}) {
    SCOPED_TRACE(tokens);
    Driven sequence(*engine_);
    sequence.Run(Append(Prompt(tokens, 1)));
    const auto state = Take(*engine_, sequence.id());
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_NE((*state)->last_row, nullptr);
    EXPECT_EQ((*state)->computed.tokens, tokens);
    // With logits the row is computed again.
    const StreamRecord want = sequence.Run(Append({}, 6));
    sequence.Finish();
    for (const int64_t generate : {1, 6}) {
      Driven other(*engine_, *state);
      Command command = Append({}, generate);
      command.logits = LogitsMode::kNone;
      const StreamRecord got = other.Run(std::move(command));
      EXPECT_TRUE(got.admitted);
      EXPECT_EQ(got.results[0].cache.cached_tokens, tokens);
      ASSERT_EQ(got.tokens.size(), static_cast<size_t>(generate));
      EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(),
                             want.tokens.begin()));
      other.Finish();
    }
  }
  ExpectNoStates(*engine_);
}

// Two appended prompts, then a draw, which takes at most a chunk.
TEST_P(EngineStateTest, DrawsAfterALaterPrompt) {
  Driven sequence(*engine_);
  sequence.Run(Append(Prompt(300, 1), 3));
  sequence.Run(Append(Prompt(200, 2)));
  const auto state = Take(*engine_, sequence.id());
  ASSERT_TRUE(state.ok()) << state.status();
  const StreamRecord want = sequence.Run(Append({}, 6));
  sequence.Finish();
  Driven drawing(*engine_, *state);
  const StreamRecord got = drawing.Run(Append({}, 6));
  ExpectSame(got, want);
  EXPECT_GE(got.results[0].cache.cached_tokens, 503 - 64);
  drawing.Finish();
}

TEST_P(EngineStateTest, TakesKeptPoints) {
  Driven sequence(*engine_);
  Command keep = Append(Prompt(200, 1), 4);
  keep.keep = true;
  sequence.Run(std::move(keep));
  const StreamRecord want = sequence.Run(Append(Prompt(50, 2), 5));
  const auto state = Take(*engine_, sequence.id(), 204);
  ASSERT_TRUE(state.ok()) << state.status();
  const auto wrong = Take(*engine_, sequence.id(), 100);
  EXPECT_TRUE(absl::IsOutOfRange(wrong.status())) << wrong.status();
  EXPECT_THAT(wrong.status().message(), HasSubstr("204"));
  sequence.Finish();
  Driven other(*engine_, *state);
  ExpectSame(other.Run(Append(Prompt(50, 2), 5)), want);
  other.Finish();
}

// A sequence that has lost its memory has a state all the same.
TEST_P(EngineStateTest, OutlivesPreemption) {
  Driven sequence(*engine_);
  sequence.Run(Append(Prompt(200, 1), 4));
  std::vector<std::unique_ptr<Driven>> others;
  for (uint64_t i = 0; i < 4; ++i) {  // all slots
    others.push_back(std::make_unique<Driven>(*engine_));
    others.back()->Run(Append(Prompt(100, 10 + i), 2));
  }
  const auto state = Take(*engine_, sequence.id());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_GT(engine_->load().preemptions_total, 0);
  const StreamRecord want = sequence.Run(Append(Prompt(50, 2), 5));
  Driven other(*engine_, *state);
  ExpectSame(other.Run(Append(Prompt(50, 2), 5)), want);
  other.Finish();
  sequence.Finish();
  for (auto& each : others) each->Finish();
}

TEST_P(EngineStateTest, RefusesWhatItCannotTake) {
  Driven sequence(*engine_, nullptr, /*flow=*/3);
  sequence.Run(Append(Prompt(200, 1), 4));
  EXPECT_TRUE(absl::IsNotFound(Take(*engine_, 12345).status()));
  // Another tenant's.
  EXPECT_TRUE(absl::IsNotFound(Take(*engine_, sequence.id()).status()));
  EXPECT_TRUE(Take(*engine_, sequence.id(), std::nullopt, 3).ok());
  sequence.Finish();
  EXPECT_TRUE(absl::IsNotFound(
      Take(*engine_, sequence.id(), std::nullopt, 3).status()));
}

// The blocks of another engine's state, byte by byte.
TEST_P(EngineStateTest, MovesToAnotherEngine) {
  Driven sequence(*engine_);
  sequence.Run(Append(Prompt(300, 1), 4));
  const auto state = Take(*engine_, sequence.id());
  ASSERT_TRUE(state.ok()) << state.status();
  const StreamRecord want = sequence.Run(Append(Prompt(50, 2), 5));
  sequence.Finish();

  auto engine = Make();
  auto moved = MakeState(*engine, {(*state)->tokens, (*state)->kinds, {}, {}},
                         (*state)->computed.tokens);
  ASSERT_TRUE(moved.ok()) << moved.status();
  const auto from = engine_->BlocksOf(**state);
  const auto to = engine->BlocksOf(**moved);
  ASSERT_TRUE(from.ok() && to.ok());
  ASSERT_EQ(from->size(), to->size());
  for (size_t i = 0; i < from->size(); ++i) {
    ASSERT_EQ((*from)[i].size(), (*to)[i].size());
    std::memcpy((*to)[i].data(), (*from)[i].data(), (*to)[i].size());
  }
  {
    Driven other(*engine, *std::exchange(moved, absl::CancelledError("")));
    ExpectSame(other.Run(Append(Prompt(50, 2), 5)), want);
    ExpectSame(other.Run(Append(Prompt(300, 3))), {});
    other.Finish();
  }
  ExpectNoStates(*engine);
  // Its numbers are its sender's: no other prompt may find them.
  EXPECT_EQ(engine->load().snapshots_total, 0u);
  EXPECT_EQ(engine->load().snapshots, 0);
}

TEST_P(EngineStateTest, TheStoreForksAndGivesBack) {
  Driven sequence(*engine_);
  sequence.Run(Append(Prompt(300, 1), 4));
  StateStore& states = engine_->states();
  const StateOwner owner = {0, 0};
  auto taken = Take(*engine_, sequence.id());
  ASSERT_TRUE(taken.ok()) << taken.status();
  const auto parent =
      states.Add(owner, *std::exchange(taken, absl::CancelledError("")),
                 {"parent", std::nullopt, false}, std::nullopt);
  ASSERT_TRUE(parent.ok()) << parent.status();
  const StreamRecord want = sequence.Run(Append(Prompt(50, 2), 5));
  sequence.Finish();
  const int64_t alone = states.totals().bytes;
  const auto used = states.Use(0, "parent");
  ASSERT_TRUE(used.ok());
  const auto children = states.Fork(owner, used->state, 16, 7, {});
  ASSERT_TRUE(children.ok()) << children.status();
  EXPECT_EQ(states.totals().states, 17);
  EXPECT_EQ(states.totals().bytes, alone + 16 * StateStore::kEntryBytes);
  EXPECT_NE((*children)[0].seed, (*children)[1].seed);
  EXPECT_TRUE(states.Release(0, "parent").ok());
  for (const StateInfo& child : *children) {
    {
      auto found = states.Use(0, child.id);
      ASSERT_TRUE(found.ok());
      EXPECT_TRUE(absl::IsNotFound(states.Use(1, child.id).status()));
      Driven other(*engine_, std::move(found->state));
      ExpectSame(other.Run(Append(Prompt(50, 2), 5)), want);
      other.Finish();
    }
    EXPECT_TRUE(states.Release(0, child.id).ok());
  }
  ExpectNoStates(*engine_);
}

TEST_P(EngineStateTest, AFullStoreRefuses) {
  Driven sequence(*engine_);
  sequence.Run(Append(Prompt(300, 1), 4));
  const auto state = Take(*engine_, sequence.id());
  ASSERT_TRUE(state.ok());
  const StateOwner small = {0, 1000};
  const auto refused = engine_->states().Add(small, *state, {}, std::nullopt);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("0 of 1000"));
  sequence.Finish();
}

INSTANTIATE_TEST_SUITE_P(Configs, EngineStateTest,
                         testing::Values(StateConfig{1, false, true},
                                         StateConfig{64, true, true},
                                         StateConfig{64, true, false},
                                         StateConfig{1, true, true}));

TEST(EngineStateOffTest, SaysWhy) {
  FakeRunnerOptions fake;
  const auto engine = MakeEngine(OptionsFor(fake), fake);
  const absl::Status status = engine->CheckStates();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), HasSubstr("--prefix-cache-bytes"));
}

}  // namespace
}  // namespace recurve
