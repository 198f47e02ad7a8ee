// Sequences that a client drives command by command; on a FakeRunner.

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

std::vector<int32_t> RandomTokens(int64_t count, uint64_t seed) {
  return TestRandom(seed).Tokens(count, 258);
}

std::vector<int32_t> Joined(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// [first, last)
std::vector<int64_t> Range(int64_t first, int64_t last) {
  std::vector<int64_t> range(last - first);
  std::iota(range.begin(), range.end(), first);
  return range;
}

struct Parameters {
  int64_t chunk;
  bool preempted;      // whenever the sequence is idle
  int32_t blocks = 0;  // of host memory, to save it in
  bool ahead = false;  // the runner lets a step be launched behind another
  bool cache = false;  // kept points have their state in host memory
};

class EngineDecodeTest : public testing::TestWithParam<Parameters> {
 protected:
  EngineDecodeTest() {
    fake_.num_slots = 1;         // so that any other sequence takes the memory
    fake_.kinds_matter = false;  // they change where pieces are cut
    fake_.num_host_blocks = GetParam().blocks;
    fake_.runs_ahead = GetParam().ahead;
    fake_.on_run = [this](const StepBatch& batch) {
      computed_ += batch.num_tokens();
      for (const SampleRequest& sample : batch.samples) ExpectToGrow(sample);
    };
    EngineOptions options = OptionsFor(fake_);
    options.max_chunk_tokens = GetParam().chunk;
    options.prefix_cache = GetParam().cache;
    engine_ = MakeEngine(options, fake_);
  }

  // Runs one command and returns what it alone brought.
  StreamRecord Run(Command command) {
    const StreamRecord before = sink_->Record();
    if (id_ == 0) {
      const auto id = engine_->Submit(
          {options_, std::move(command), /*close_when_done=*/false, sink_});
      EXPECT_TRUE(id.ok()) << id.status();
      id_ = *id;
    } else {
      engine_->Extend(id_, std::move(command));
    }
    StreamRecord record = sink_->WaitCommands(before.results.size() + 1);
    EXPECT_FALSE(record.end) << *record.end;
    record.tokens.erase(
        record.tokens.begin(),
        record.tokens.begin() + static_cast<int64_t>(before.tokens.size()));
    record.logits.erase(
        record.logits.begin(),
        record.logits.begin() + static_cast<int64_t>(before.logits.size()));
    if (GetParam().preempted) {
      EXPECT_TRUE(RunAlone(*engine_, Script::Generate(RandomTokens(90, 99), 3))
                      .end->ok());
      EXPECT_EQ(engine_->load().slots_used, 0);
    }
    return record;
  }

  void Finish() {
    engine_->Close(id_);
    const StreamRecord record = sink_->WaitEnd();
    EXPECT_TRUE(record.end->ok()) << *record.end;
    EXPECT_EQ(record.violation, "");
    EXPECT_TRUE(IsIdle(*engine_));
    EXPECT_EQ(engine_->load().preemptions_total > 0, GetParam().preempted);
    EXPECT_EQ(engine_->load().saves_total > 0,
              GetParam().preempted && GetParam().blocks > 0);
  }

  // Under the number of a sequence a sampler sees tokens that only grow.
  void ExpectToGrow(const SampleRequest& sample) {
    auto& [prompt, output] = sampled_[sample.sequence];
    ASSERT_GE(sample.prompt.size(), prompt.size());
    EXPECT_TRUE(
        std::equal(prompt.begin(), prompt.end(), sample.prompt.begin()));
    ASSERT_GE(sample.output.size(), output.size());
    EXPECT_TRUE(
        std::equal(output.begin(), output.end(), sample.output.begin()));
    prompt.assign(sample.prompt.begin(), sample.prompt.end());
    output.assign(sample.output.begin(), sample.output.end());
  }

  // The rows are those of the model after these tokens.
  void ExpectRows(const StreamRecord& record,
                  const std::vector<int32_t>& sequence) {
    for (const StepEvent::LogitsRow& row : record.logits) {
      ASSERT_LT(row.position, static_cast<int64_t>(sequence.size()));
      const std::vector<int32_t> tokens(sequence.begin(),
                                        sequence.begin() + row.position + 1);
      const std::vector<TokenKind> kinds(tokens.size(), TokenKind::kStep);
      EXPECT_EQ(row.values, FakeLogits(tokens, kinds, fake_));
    }
  }

  FakeRunnerOptions fake_;
  SequenceOptions options_;
  std::atomic<int64_t> computed_{0};  // tokens, in all steps
  std::map<uint64_t, std::pair<std::vector<int32_t>, std::vector<int32_t>>>
      sampled_;  // prompt and output, by the number of a sequence
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  uint64_t id_ = 0;
};

TEST_P(EngineDecodeTest, PiecesGiveTheTokensOfTheWhole) {
  const std::vector<int32_t> prompt = RandomTokens(150, 1);
  const Script whole = Script::Generate(prompt, 30);
  const std::vector<int32_t> expected = RunSolo(fake_, whole).tokens;
  // The prompt in pieces without generation, the tokens in pieces without
  // appending.
  std::vector<int32_t> tokens;
  Run({{prompt.begin(), prompt.begin() + 1}});
  Run({{prompt.begin() + 1, prompt.begin() + 64}});
  for (int64_t count : {0, 1, 10, 19}) {
    Command command;
    if (count == 0) command.append = {prompt.begin() + 64, prompt.end()};
    command.generate = count;
    const StreamRecord record = Run(std::move(command));
    tokens = Joined(tokens, record.tokens);
  }
  EXPECT_EQ(tokens, expected);
  Finish();
}

TEST_P(EngineDecodeTest, WhatIsAppendedAfterGenerationFollowsIt) {
  const StreamRecord first = Run({RandomTokens(70, 1), 5, LogitsMode::kNone});
  const StreamRecord second = Run({RandomTokens(3, 2), 5, LogitsMode::kNone});
  const std::vector<int32_t> sequence =
      Joined(Joined(RandomTokens(70, 1), first.tokens), RandomTokens(3, 2));
  EXPECT_EQ(second.tokens,
            RunSolo(fake_, Script::Generate(sequence, 5)).tokens);
  EXPECT_EQ(second.results.back().sequence_tokens, 83);
  EXPECT_EQ(second.results.back().prompt_tokens, 73);
  EXPECT_EQ(second.results.back().completion_tokens, 10);
  Finish();
}

TEST_P(EngineDecodeTest, NoneReturnsNoRows) {
  EXPECT_THAT(Run({RandomTokens(70, 1), 5, LogitsMode::kNone}).logits,
              IsEmpty());
  EXPECT_THAT(Run({RandomTokens(7, 1), 0, LogitsMode::kNone}).logits,
              IsEmpty());
  Finish();
}

TEST_P(EngineDecodeTest, NextReturnsTheRowsThatTokensAreDrawnFrom) {
  std::vector<int32_t> sequence = RandomTokens(70, 1);
  const auto append = [&](const StreamRecord& record) {
    sequence = Joined(sequence, record.tokens);
    return record.LogitsPositions();
  };
  StreamRecord record = Run({sequence, 4, LogitsMode::kNext});
  EXPECT_EQ(append(record), Range(69, 73));
  ExpectRows(record, sequence);
  // The fourth token is not computed yet, and is what the next is drawn from.
  record = Run({{}, 2, LogitsMode::kNext});
  EXPECT_EQ(append(record), Range(73, 75));
  ExpectRows(record, sequence);
  // Only the last row of the appended tokens.
  sequence = Joined(sequence, RandomTokens(5, 2));
  record = Run({RandomTokens(5, 2), 0, LogitsMode::kNext});
  EXPECT_EQ(append(record), Range(80, 81));
  ExpectRows(record, sequence);
  record = Run({{}, 1, LogitsMode::kNext});
  EXPECT_EQ(append(record), Range(80, 81));
  ExpectRows(record, sequence);
  EXPECT_THAT(sequence, SizeIs(82));
  Finish();
}

TEST_P(EngineDecodeTest, AllReturnsTheRowsOfTheCommand) {
  std::vector<int32_t> sequence = RandomTokens(70, 1);
  const auto append = [&](const StreamRecord& record) {
    sequence = Joined(sequence, record.tokens);
    return record.LogitsPositions();
  };
  StreamRecord record = Run({sequence, 4, LogitsMode::kAll});
  EXPECT_EQ(append(record), Range(0, 73));
  ExpectRows(record, sequence);
  sequence = Joined(sequence, RandomTokens(5, 2));
  record =
      Run({RandomTokens(5, 2), 0, LogitsMode::kAll});  // and the one before it
  EXPECT_EQ(append(record), Range(73, 79));
  ExpectRows(record, sequence);
  record = Run({{}, 3, LogitsMode::kAll});
  EXPECT_EQ(append(record), Range(78, 81));
  ExpectRows(record, sequence);
  sequence = Joined(sequence, RandomTokens(70, 3));
  record = Run({RandomTokens(70, 3), 0, LogitsMode::kNone});
  EXPECT_THAT(append(record), IsEmpty());
  sequence = Joined(sequence, RandomTokens(1, 4));
  record = Run({RandomTokens(1, 4), 0, LogitsMode::kAll});
  EXPECT_EQ(append(record), Range(152, 153));
  ExpectRows(record, sequence);
  Finish();
}

TEST_P(EngineDecodeTest, CommandsMayBeSentAhead) {
  Script script;
  script.commands = {{RandomTokens(30, 1), 3, LogitsMode::kNext},
                     {{}, 4, LogitsMode::kNone},
                     {RandomTokens(3, 2), 0, LogitsMode::kAll},
                     {{}, 2, LogitsMode::kNext}};
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;
  for (const Command& command : script.commands) {
    const StreamRecord record = Run(command);
    tokens = Joined(tokens, record.tokens);
    for (int64_t position : record.LogitsPositions())
      positions.push_back(position);
  }
  Finish();
  EXPECT_EQ(positions,
            (std::vector<int64_t>{29, 30, 31, 36, 37, 38, 39, 39, 40}));
  const StreamRecord ahead = RunSolo(fake_, script);
  EXPECT_EQ(ahead.tokens, tokens);
  EXPECT_EQ(ahead.LogitsPositions(), positions);
  EXPECT_THAT(ahead.results, SizeIs(4));
}

TEST_P(EngineDecodeTest, TokensAskedForLaterAreThoseOfOneCommand) {
  const std::vector<int32_t> prompt = RandomTokens(150, 1);
  const std::vector<int32_t> expected =
      RunSolo(fake_, Script::Generate(prompt, 8)).tokens;
  computed_ = 0;
  Run({prompt, 0, LogitsMode::kNone});
  StreamRecord record = Run({{}, 3, LogitsMode::kNone});
  std::vector<int32_t> tokens = record.tokens;
  // All logits are wanted of what the command computes.
  record = Run({{}, 5, LogitsMode::kAll});
  tokens = Joined(tokens, record.tokens);
  EXPECT_EQ(tokens, expected);
  EXPECT_THAT(record.logits, SizeIs(5));
  if (!GetParam().preempted) {
    EXPECT_EQ(computed_, 150 + 7);  // the last is not in the cache yet
  }
  Finish();
}

TEST_P(EngineDecodeTest, WhatFollowsAppendedTokensIsDrawnFromThem) {
  const std::vector<int32_t> first = RandomTokens(70, 1);
  const std::vector<int32_t> second = RandomTokens(9, 2);
  const std::vector<int32_t> expected =
      RunSolo(fake_, Script::Generate(Joined(first, second), 4)).tokens;
  Run({first, 0, LogitsMode::kNone});
  Run({second, 0, LogitsMode::kNext});
  EXPECT_EQ(Run({{}, 4, LogitsMode::kNone}).tokens, expected);
  Finish();
}

// The row that its first token is drawn from is computed again.
TEST_P(EngineDecodeTest, ACommandThatAppendsNothingMayWantLogits) {
  const std::vector<int32_t> prompt = RandomTokens(70, 1);
  Run({prompt, 0, LogitsMode::kNone});
  const StreamRecord record = Run({{}, 2, LogitsMode::kNext});
  EXPECT_EQ(record.LogitsPositions(), (std::vector<int64_t>{69, 70}));
  EXPECT_EQ(record.tokens, RunSolo(fake_, Script::Generate(prompt, 2)).tokens);
  Finish();
}

TEST_P(EngineDecodeTest, ARollbackGoesBackToAKeptPoint) {
  const std::vector<int32_t> prompt = RandomTokens(150, 1);
  Command command = {prompt, 3};
  command.keep = true;
  const std::vector<int32_t> head = Joined(prompt, Run(command).tokens);
  const std::vector<int32_t> one = RandomTokens(40, 2);
  const std::vector<int32_t> other = RandomTokens(70, 3);
  const std::vector<int32_t> first = Run({one, 6, LogitsMode::kNext}).tokens;
  Run({other, 0, LogitsMode::kNone});
  for (const auto& [append, expected] :
       {std::pair(one, first),
        {other,
         RunSolo(fake_, Script::Generate(Joined(head, other), 6)).tokens},
        {{}, RunSolo(fake_, Script::Generate(head, 6)).tokens},
        {one, first}}) {
    command = {append, 6, LogitsMode::kAll, 153};
    sink_->ExpectRollback(3);
    computed_ = 0;
    const StreamRecord record = Run(command);
    EXPECT_EQ(record.tokens, expected);
    EXPECT_EQ(record.results.back().sequence_tokens,
              153 + static_cast<int64_t>(append.size()) + 6);
    EXPECT_EQ(record.results.back().completion_tokens, 3 + 6);
    ExpectRows(record, Joined(Joined(head, append), expected));
    if (GetParam().cache && !GetParam().preempted) {
      // The last token generated before and all but the last of these.
      EXPECT_EQ(computed_, 1 + append.size() + 5);
    }
  }
  Finish();
}

// Points that a rollback passes are forgotten; it may keep another at once.
TEST_P(EngineDecodeTest, PointsAreKeptInOrder) {
  Command command = {RandomTokens(70, 1)};
  command.keep = true;
  Run(command);  // what follows is drawn, and kept, too
  command.append = RandomTokens(70, 2);
  Run(command);
  command = {{}, 4, LogitsMode::kNone, 140, true};
  const std::vector<int32_t> after = Run(command).tokens;
  command = {RandomTokens(3, 3), 2, LogitsMode::kNone, 144, true};
  Run(command);
  const std::vector<int32_t> expected =
      RunSolo(fake_, Script::Generate(RandomTokens(70, 1), 4)).tokens;
  sink_->ExpectRollback(0);
  computed_ = 0;
  EXPECT_EQ(Run({{}, 4, LogitsMode::kNone, 70}).tokens, expected);
  if (GetParam().cache && !GetParam().preempted) {
    EXPECT_EQ(computed_, 3);
  }
  sink_->ExpectRollback(0);
  EXPECT_EQ(Run({RandomTokens(70, 2), 4, LogitsMode::kNone, 70}).tokens, after);
  Finish();
}

TEST_P(EngineDecodeTest, EndsOfCommandsCarryTheirReason) {
  const std::vector<int32_t> expected =
      RunSolo(fake_, Script::Generate(RandomTokens(9, 1), 20)).tokens;
  options_.stopping.stop_token_ids = {expected[2]};
  StreamRecord record = Run({RandomTokens(9, 1), 20, LogitsMode::kNone});
  EXPECT_EQ(record.results.back().reason, FinishReason::kStopToken);
  EXPECT_EQ(record.tokens.back(), expected[2]);
  record = Run({RandomTokens(9, 2), 0, LogitsMode::kNone});
  EXPECT_EQ(record.results.back().reason, FinishReason::kLength);
  Finish();
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, EngineDecodeTest,
    testing::Values(Parameters{512, false}, Parameters{512, true},
                    Parameters{1, false}, Parameters{7, true},
                    Parameters{64, true}, Parameters{512, true, 64},
                    Parameters{7, true, 64}, Parameters{64, false, 0, true},
                    Parameters{7, true, 0, true},
                    Parameters{512, true, 64, true},
                    Parameters{64, false, 64, false, true},
                    Parameters{64, false, 64, true, true},
                    Parameters{7, true, 64, true, true}),
    [](const testing::TestParamInfo<Parameters>& info) {
      return "Chunk" + std::to_string(info.param.chunk) +
             (info.param.blocks > 0  ? "Saved"
              : info.param.preempted ? "Preempted"
                                     : "") +
             (info.param.ahead ? "Ahead" : "") +
             (info.param.cache ? "Cache" : "");
    });

// A command that wants all rows gets at most max_step_logits in a step, and a
// prompt computed as a whole may have more tokens: when it is recomputed for
// such a command, its rows are no longer wanted.
TEST(EngineWholePromptTest, IsComputedAgainWholeForACommandThatWantsAllRows) {
  FakeRunnerOptions fake;
  fake.whole_prompts = true;
  fake.num_slots = 1;  // so that any other sequence takes the memory
  fake.vocab_size = 3000;
  const auto engine = MakeEngine(OptionsFor(fake), fake);
  Script script = Script::Generate(TestRandom(1).Tokens(200, 3000), 3);
  ASSERT_LT(engine->limits().max_prompt_logits, 200);
  script.commands.push_back(
      {TestRandom(2).Tokens(5, 3000), 2, LogitsMode::kAll});
  const auto sink = std::make_shared<RecordingSink>();
  const auto id = Submit(*engine, script, sink, /*close_when_done=*/false);
  ASSERT_TRUE(id.ok()) << id.status();
  sink->WaitCommands(1);
  EXPECT_TRUE(
      RunAlone(*engine, Script::Generate(RandomTokens(90, 99), 3)).end->ok());
  EXPECT_EQ(engine->load().recomputes_total, 1u);
  engine->Extend(*id, script.commands[1]);
  engine->Close(*id);
  const StreamRecord record = sink->WaitEnd();
  EXPECT_TRUE(record.end->ok()) << *record.end;
  EXPECT_EQ(record.violation, "");
  EXPECT_EQ(record.tokens, RunSolo(fake, script).tokens);
  // From the token drawn last, which was still to be computed, on.
  EXPECT_EQ(record.LogitsPositions(), Range(202, 209));
}

}  // namespace
}  // namespace recurve
