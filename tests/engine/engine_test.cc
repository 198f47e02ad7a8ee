// What ends a stream, and what a client sees of it; on a FakeRunner.

#include "engine/serving/engine.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/tokenizer/bytes_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::SizeIs;

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    fake_.printable = true;
    fake_.on_run = [this](const StepBatch& batch) { gate_.Enter(batch); };
    auto tokenizer = BytesTokenizer::Make(258, 256, 257);
    tokenizer_ = *std::move(tokenizer);
  }
  ~EngineTest() override { gate_.Open(); }

  // With the options as they are now.
  void Start() { Start(OptionsFor(fake_)); }
  void Start(const EngineOptions& options) {
    gate_.Open();
    engine_ = MakeEngine(options, fake_, tokenizer_.get());
  }
  std::shared_ptr<RecordingSink> NewSink() {
    return std::make_shared<RecordingSink>();
  }

  FakeRunnerOptions fake_;
  StepGate gate_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
};

// --- Generation ---

TEST_F(EngineTest, TokensAreTheModelsOwn) {
  Start();
  const std::vector<int32_t> prompt = Prompt(130);
  const StreamRecord record =
      RunAlone(*engine_, Script::Generate(prompt, 70, LogitsMode::kNext));
  EXPECT_EQ(record.violation, "");
  EXPECT_TRUE(record.end->ok()) << *record.end;
  ASSERT_THAT(record.tokens, SizeIs(70));
  std::vector<int32_t> sequence = prompt;
  std::vector<TokenKind> kinds;
  AppendKinds(130, &kinds);
  for (size_t i = 0; i < record.tokens.size(); ++i) {
    const std::vector<float> logits = FakeLogits(sequence, kinds, fake_);
    EXPECT_EQ(record.logits[i].values, logits);
    EXPECT_EQ(record.tokens[i],
              std::max_element(logits.begin(), logits.end()) - logits.begin());
    sequence.push_back(record.tokens[i]);
    kinds.push_back(TokenKind::kStep);
  }
  EXPECT_TRUE(IsIdle(*engine_));
}

// What a backend may go by: how each token is to be computed, the same however
// often it is and whether or not it is known when its step is launched, and
// whether logits are read.
TEST_F(EngineTest, BatchesSayHowTokensAreComputed) {
  for (const bool ahead : {false, true}) {
    SCOPED_TRACE(ahead);
    std::map<int64_t, std::vector<TokenKind>> kinds;  // by position
    std::vector<bool> wants_logits;
    size_t fed = 0;
    fake_.runs_ahead = ahead;
    fake_.on_run = [&](const StepBatch& batch) {
      ASSERT_EQ(batch.kinds.size(), batch.tokens.size());
      for (size_t i = 0; i < batch.tokens.size(); ++i)
        kinds[batch.positions[i]].push_back(batch.kinds[i]);
      wants_logits.push_back(batch.wants_logits);
      fed += batch.fed.size();
    };
    Start();
    Script script = Script::Generate(Prompt(kMinPromptTokens), 2);
    script.commands.push_back(
        {Prompt(kMinPromptTokens - 1), 2, LogitsMode::kNext});
    script.commands.push_back(
        {Prompt(kShortPromptTokens), 0, LogitsMode::kNone});
    // Returns no logits; the last command, which wants them, then computes all
    // tokens again.
    script.commands.push_back(
        {Prompt(kShortPromptTokens + 1), 0, LogitsMode::kNone});
    script.commands.push_back({{}, 1, LogitsMode::kNext});
    ASSERT_TRUE(RunAlone(*engine_, script).end->ok());
    std::vector<TokenKind> want;
    AppendKinds(kMinPromptTokens, &want);
    // Two generated, a short command, two generated.
    want.insert(want.end(), 2 + kMinPromptTokens - 1 + 2, TokenKind::kStep);
    AppendKinds(kShortPromptTokens, &want);
    AppendKinds(kShortPromptTokens + 1, &want);
    ASSERT_EQ(kinds.size(), want.size());
    for (size_t position = 0; position < want.size(); ++position) {
      EXPECT_THAT(kinds[position], AllOf(SizeIs(2), Each(want[position])))
          << position;
    }
    EXPECT_FALSE(wants_logits.front());
    EXPECT_THAT(wants_logits, Contains(true));
    EXPECT_EQ(fed, ahead ? 1u : 0u);
    engine_.reset();  // before what its steps write to
  }
}

TEST_F(EngineTest, PromptsAreCutWhereTheModelSays) {
  std::vector<int64_t> ends;
  fake_.chunk_multiple = 64;
  fake_.on_run = [&](const StepBatch& batch) {
    ends.push_back(batch.positions.back() + 1);
  };
  EngineOptions options = OptionsFor(fake_);
  options.max_chunk_tokens = 100;
  Start(options);
  ASSERT_TRUE(RunAlone(*engine_, Script::Generate(Prompt(200), 3)).end->ok());
  EXPECT_THAT(ends, testing::ElementsAre(64, 128, 200, 201, 202));
}

// A step always has a token for each of max_num_seqs.
TEST_F(EngineTest, NoMoreThanMaxNumSeqsHoldMemoryHoweverManySlotsThereAre) {
  fake_.num_slots = 8;
  EngineOptions options = OptionsFor(fake_);
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = options.max_chunk_tokens = 4;
  int64_t most = 0;
  fake_.on_run = [&](const StepBatch& batch) {
    most = std::max(most, batch.num_sequences());
    gate_.Enter(batch);
  };
  Start(options);
  gate_.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 5; ++i) {
    sinks.push_back(NewSink());
    Script script = Script::Generate(Prompt(1 + i), 20);
    script.options.priority = i;  // so that memory changes hands
    ASSERT_TRUE(Submit(*engine_, script, sinks.back()).ok());
    for (int step = 0; step < 8; ++step) {
      gate_.WaitHeld();
      EXPECT_LE(engine_->load().resident, 2);
      gate_.Pass();
    }
  }
  gate_.Open();
  for (const auto& sink : sinks)
    EXPECT_THAT(sink->WaitEnd().tokens, SizeIs(20));
  EXPECT_GT(engine_->load().preemptions_total, 0u);
  EXPECT_EQ(most, 2);
  engine_.reset();  // before what its steps write to
}

// Single tokens of decoding stand first, then sequences with nothing but such
// and short prompts, then the others.
TEST_F(EngineTest, BatchesHaveLikeTokensSideBySide) {
  bool mixed = false;
  fake_.on_run = [&](const StepBatch& batch) {
    int last = 0;
    std::set<int> groups;
    for (int64_t b = 0; b < batch.num_sequences(); ++b) {
      const int32_t begin = batch.query_start[b];
      const int32_t end = batch.query_start[b + 1];
      int group = 1;
      if (end == begin + 1 && batch.kinds[begin] == TokenKind::kStep) group = 0;
      for (int32_t row = begin; row < end; ++row) {
        if (batch.kinds[row] == TokenKind::kPrompt ||
            batch.kinds[row] == TokenKind::kPromptStart) {
          group = 2;
        }
      }
      EXPECT_GE(group, last);
      last = group;
      groups.insert(group);
    }
    mixed |= groups.size() == 3;
    gate_.Enter(batch);
  };
  Start();
  gate_.Hold();  // so that no sequence ends before the next comes
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    Script script = Script::Generate(Prompt(20 + i), 40);
    script.options.priority = i;
    ASSERT_TRUE(Submit(*engine_, script, sinks.back(), true).ok());
    while (true) {
      gate_.WaitHeld();
      if (sinks.back()->Record().tokens.size() >= 2) break;
      gate_.Pass();
    }
  }
  // While a step is held, prompts long and short come in turn.
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    const Script script =
        Script::Generate(Prompt(i % 2 == 0 ? kShortPromptTokens + 40 : 50), 4);
    ASSERT_TRUE(Submit(*engine_, script, sinks.back(), true).ok());
  }
  gate_.Open();
  for (const auto& sink : sinks) {
    sink->WaitEnd();
    EXPECT_TRUE(sink->Record().end->ok());
  }
  EXPECT_TRUE(mixed);
  engine_.reset();  // before what its steps write to
}

TEST_F(EngineTest, ReportsUsageAndTimes) {
  Start();
  const StreamRecord record =
      RunAlone(*engine_, Script::Generate(Prompt(30), 7));
  ASSERT_THAT(record.results, SizeIs(1));
  const CommandResult& result = record.results[0];
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.prompt_tokens, 30);
  EXPECT_EQ(result.completion_tokens, 7);
  EXPECT_EQ(result.sequence_tokens, 37);
  EXPECT_EQ(result.preemptions, 0);
  EXPECT_LE(result.queue_seconds, result.time_to_first_token_seconds);
  EXPECT_LE(result.time_to_first_token_seconds, result.total_seconds);
  const EngineLoad load = engine_->load();
  EXPECT_EQ(load.prompt_tokens_total, 30u);
  EXPECT_EQ(load.generation_tokens_total, 7u);
  EXPECT_EQ(load.slots_total, fake_.num_slots);
  EXPECT_EQ(load.pages_total, fake_.num_pages);
}

TEST_F(EngineTest, ASeedGivesTheSameTokensAndAnotherSeedOthers) {
  Start();
  Script script = Script::Generate(Prompt(10), 40);
  script.options.sampling.temperature = 1.0f;
  script.options.sampling.seed = 5;
  const StreamRecord first = RunAlone(*engine_, script);
  EXPECT_EQ(RunAlone(*engine_, script).tokens, first.tokens);
  script.options.sampling.seed = 6;
  EXPECT_NE(RunAlone(*engine_, script).tokens, first.tokens);
}

// --- Stop conditions ---

TEST_F(EngineTest, StopsAtEosUnlessToldToIgnoreIt) {
  Start();
  Script script = Script::Generate(Prompt(20), 30);
  const StreamRecord all = RunAlone(*engine_, script);
  fake_.eos_token_ids = {1, all.tokens[9]};
  Start();
  const auto first =
      std::find(all.tokens.begin(), all.tokens.end(), all.tokens[9]);
  const StreamRecord stopped = RunAlone(*engine_, script);
  EXPECT_EQ(stopped.tokens,
            std::vector<int32_t>(all.tokens.begin(), first + 1));
  EXPECT_EQ(stopped.results[0].reason, FinishReason::kEos);
  script.options.stopping.ignore_eos = true;
  const StreamRecord ignored = RunAlone(*engine_, script);
  EXPECT_EQ(ignored.tokens, all.tokens);
  EXPECT_EQ(ignored.results[0].reason, FinishReason::kLength);
}

TEST_F(EngineTest, StopsAtAStopToken) {
  Start();
  Script script = Script::Generate(Prompt(20), 30);
  const StreamRecord all = RunAlone(*engine_, script);
  script.options.stopping.stop_token_ids = {all.tokens[4]};
  const StreamRecord stopped = RunAlone(*engine_, script);
  EXPECT_EQ(stopped.tokens.back(), all.tokens[4]);
  EXPECT_LE(stopped.tokens.size(), 5u);
  EXPECT_EQ(stopped.results[0].reason, FinishReason::kStopToken);
}

TEST_F(EngineTest, AStopTokenIsNoTextUnlessWanted) {
  Start();
  Script script = Script::Generate(Prompt(20), 30);
  const StreamRecord all = RunAlone(*engine_, script);
  const size_t end = all.text.find(all.text[4]);
  script.options.stopping.stop_token_ids = {all.tokens[4]};
  EXPECT_EQ(RunAlone(*engine_, script).text, all.text.substr(0, end));
  script.options.stopping.include_stop_str_in_output = true;
  EXPECT_EQ(RunAlone(*engine_, script).text, all.text.substr(0, end + 1));
}

// As the tokens of a model for which those that would end it are impossible.
TEST_F(EngineTest, MinTokensKeepsOutWhatWouldEndIt) {
  for (const bool ahead : {false, true}) {
    SCOPED_TRACE(ahead);
    fake_.runs_ahead = ahead;
    fake_.eos_token_ids = {};
    Start();
    const std::vector<int32_t> prompt = Prompt(20);
    Script script = Script::Generate(prompt, 40);
    script.options.sampling.num_logprobs = 0;
    const StreamRecord all = RunAlone(*engine_, script);
    const std::vector<int32_t> ends = {all.tokens[2], all.tokens[5]};
    fake_.eos_token_ids = {ends[0]};
    Start();
    script.options.stopping.stop_token_ids = {ends[1]};
    script.options.stopping.min_tokens = 25;
    for (const bool ignore_eos : {false, true}) {
      script.options.stopping.ignore_eos = ignore_eos;
      const StreamRecord got = RunAlone(*engine_, script);
      std::vector<int32_t> sequence = prompt;
      std::vector<TokenKind> kinds;
      AppendKinds(20, &kinds);
      ASSERT_GE(got.tokens.size(), 26u);
      for (size_t i = 0; i < got.tokens.size(); ++i) {
        std::vector<float> logits = FakeLogits(sequence, kinds, fake_);
        if (i < 25) {
          for (const int32_t id : ends)
            logits[id] = -std::numeric_limits<float>::infinity();
        }
        const auto best = std::max_element(logits.begin(), logits.end());
        ASSERT_EQ(got.tokens[i], best - logits.begin()) << i;
        sequence.push_back(got.tokens[i]);
        kinds.push_back(TokenKind::kStep);
      }
    }
  }
}

TEST_F(EngineTest, MinTokensIsAtMostWhatIsGenerated) {
  fake_.eos_token_ids = {1};
  Start();
  Script script = Script::Generate(Prompt(20), 5);
  script.options.stopping.min_tokens = 6;
  EXPECT_THAT(RunAlone(*engine_, script).end.value(),
              FailsWith(kInvalid,
                        "stopping.min_tokens is 6; expected at most "
                        "stopping.max_new_tokens, which is 5"));
  script.options.stopping.min_tokens = 5;
  EXPECT_THAT(RunAlone(*engine_, script).tokens, SizeIs(5));
}

TEST_F(EngineTest, StopsAtAStopStringAndShowsNothingOfIt) {
  Start();
  Script script = Script::Generate(Prompt(20), 30);
  const StreamRecord all = RunAlone(*engine_, script);
  ASSERT_THAT(all.text, SizeIs(30));
  const std::string stop = all.text.substr(11, 3);
  script.options.stopping.stop_strings = {"\x01never", stop};
  const StreamRecord stopped = RunAlone(*engine_, script);
  EXPECT_EQ(stopped.text, all.text.substr(0, all.text.find(stop)));
  EXPECT_EQ(stopped.results[0].reason, FinishReason::kStopString);
  EXPECT_EQ(stopped.results[0].stop_string, stop);
  EXPECT_EQ(stopped.tokens.size(), all.text.find(stop) + 3);
}

TEST_F(EngineTest, FlushesTextHeldForAStopStringThatDoesNotCome) {
  Start();
  Script script = Script::Generate(Prompt(20), 30);
  const StreamRecord all = RunAlone(*engine_, script);
  script.options.stopping.stop_strings = {all.text.substr(28) + "\x01"};
  const StreamRecord record = RunAlone(*engine_, script);
  EXPECT_EQ(record.text, all.text);
  EXPECT_EQ(record.results[0].text, all.text.substr(28));
  EXPECT_EQ(record.results[0].reason, FinishReason::kLength);
}

// --- Refusals ---

TEST_F(EngineTest, RefusesBadRequestsBeforeAnyStep) {
  Start();
  const auto refused = [&](const Script& script) {
    return RunAlone(*engine_, script).end.value();
  };
  EXPECT_THAT(refused(Script::Generate({}, 1)), FailsWith(kInvalid, "empty"));
  EXPECT_THAT(refused(Script::Generate({258}, 1)),
              FailsWith(kInvalid, "[0] is 258"));
  EXPECT_THAT(refused(Script::Generate(Prompt(4000), 97)),
              FailsWith(kInvalid, "max_model_len", "4096"));
  Script script = Script::Generate({1}, 1);
  script.options.sampling.temperature = -1;
  EXPECT_THAT(refused(script), FailsWith(kInvalid, "temperature"));
  EXPECT_EQ(gate_.steps(), 0);
  EXPECT_EQ(engine_->load().open, 0);
}

TEST_F(EngineTest, RunsASequenceThatFillsTheCacheExactly) {
  fake_.num_pages = 2;
  Start();
  const StreamRecord record =
      RunAlone(*engine_, Script::Generate(Prompt(100), 28));
  EXPECT_TRUE(record.end->ok()) << *record.end;
  EXPECT_THAT(record.tokens, SizeIs(28));
}

TEST_F(EngineTest, CreateRefusesOptionsThatTheRunnerCannotMeet) {
  const auto create = [&](const EngineOptions& options) {
    return Engine::Create(options, std::make_unique<FakeRunner>(fake_), nullptr,
                          nullptr)
        .status();
  };
  EngineOptions options = OptionsFor(fake_);
  options.max_num_seqs = fake_.num_slots + 1;
  EXPECT_THAT(create(options), FailsWith(kInvalid, "max-num-seqs", "9", "8"));
  fake_.chunk_multiple = 64;
  options = OptionsFor(fake_);
  options.max_chunk_tokens = 63;
  EXPECT_THAT(create(options), FailsWith(kInvalid, "max-chunk-tokens is 63",
                                         "by 64 tokens", "at least 64"));
  options = OptionsFor(fake_);
  options.max_num_batched_tokens = options.max_chunk_tokens =
      options.max_num_seqs + 62;
  EXPECT_THAT(create(options),
              FailsWith(kInvalid, "max-num-batched-tokens is", "at least 71"));
  options = OptionsFor(fake_);
  ++options.max_model_len;
  EXPECT_THAT(create(options),
              FailsWith(kInvalid, "max-model-len", "4097", "4096"));
  options.max_model_len = -1;
  EXPECT_THAT(create(options), FailsWith(kInvalid, "max-model-len is -1"));
  options = OptionsFor(fake_);
  options.max_num_batched_tokens = options.max_num_seqs - 1;
  EXPECT_THAT(create(options),
              FailsWith(kInvalid, "--max-num-seqs is 8",
                        "--max-num-batched-tokens 7", "at least"));
  options.max_num_batched_tokens = (1 << 20) + 1;
  EXPECT_THAT(create(options),
              FailsWith(kInvalid, "--max-num-batched-tokens is 1048577",
                        "1 to 1048576"));
}

TEST_F(EngineTest, RefusesMoreThanTheQueueHolds) {
  EngineOptions options = OptionsFor(fake_);
  options.max_queued_requests = 3;
  Start(options);
  gate_.Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const Script script = Script::Generate(Prompt(5), 3);
  for (int i = 0; i < 11; ++i) {
    sinks.push_back(NewSink());
    EXPECT_TRUE(Submit(*engine_, script, sinks.back()).ok()) << i;
  }
  const auto extra = NewSink();
  EXPECT_THAT(Submit(*engine_, script, extra).status(),
              FailsWith(absl::StatusCode::kResourceExhausted, "11", "8", "3"));
  gate_.WaitHeld();
  gate_.Open();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->WaitEnd().end->ok());
  EXPECT_EQ(extra->Record().ends, 0);
  EXPECT_TRUE(Submit(*engine_, script, extra).ok());
  EXPECT_TRUE(extra->WaitEnd().end->ok());
}

// --- Cancellation ---

TEST_F(EngineTest, ACancelledSequenceIsGoneWithinTwoSteps) {
  Start();
  gate_.Hold();
  const auto stays = NewSink();
  const auto leaves = NewSink();
  ASSERT_TRUE(Submit(*engine_, Script::Generate(Prompt(9), 500), stays).ok());
  const auto id = Submit(*engine_, Script::Generate(Prompt(99), 500), leaves);
  while (gate_.WaitHeld() < 4) gate_.Pass();
  const int64_t held = gate_.steps();
  EXPECT_EQ(gate_.last_sequences(), 2);
  engine_->Cancel(*id, absl::DeadlineExceededError("too late"));
  gate_.Pass();  // the step that was under way
  EXPECT_LE(gate_.WaitHeld() - held, 2);
  EXPECT_EQ(gate_.last_sequences(), 1);
  EXPECT_EQ(engine_->load().slots_used, 1);
  EXPECT_EQ(engine_->load().open, 1);
  EXPECT_EQ(leaves->WaitEnd().end->code(), absl::StatusCode::kDeadlineExceeded);
  gate_.Open();
  EXPECT_THAT(stays->WaitEnd().tokens, SizeIs(500));
  EXPECT_EQ(leaves->Record().violation, "");
  EXPECT_TRUE(IsIdle(*engine_));
}

TEST_F(EngineTest, CancelsWhatWaitsAndWhatWasNeverSeen) {
  fake_.num_slots = 1;
  Start();
  gate_.Hold();
  const auto runs = NewSink();
  const auto waits = NewSink();
  const auto fresh = NewSink();
  const Script script = Script::Generate(Prompt(9), 50);
  ASSERT_TRUE(Submit(*engine_, script, runs).ok());
  const auto waiting = Submit(*engine_, script, waits);
  gate_.WaitHeld();
  const auto unseen = Submit(*engine_, script, fresh);
  EXPECT_TRUE(engine_->Abort(*waiting).ok());
  EXPECT_TRUE(engine_->Abort(*unseen).ok());
  gate_.Open();
  for (const auto& sink : {waits, fresh}) {
    EXPECT_EQ(sink->WaitEnd().end->code(), absl::StatusCode::kCancelled);
    EXPECT_FALSE(sink->Record().admitted);
  }
  EXPECT_TRUE(runs->WaitEnd().end->ok());
  EXPECT_EQ(engine_->Abort(*waiting).code(), absl::StatusCode::kNotFound);
  engine_->Cancel(*unseen, absl::CancelledError("again"));
  EXPECT_TRUE(RunAlone(*engine_, script).end->ok());
  EXPECT_EQ(fresh->Record().ends, 1);
}

// --- The engine called from within its own callbacks ---

// Cancels itself at its third token and looks at the engine on every call.
class ReentrantSink : public RecordingSink {
 public:
  void OnAdmitted(double queue_seconds) override {
    EXPECT_EQ(engine->load().open, 1);
    RecordingSink::OnAdmitted(queue_seconds);
  }
  bool OnStep(StepEvent event) override {
    if (event.index == 2) {
      EXPECT_TRUE(engine->Abort(id.load()).ok());
    }
    return RecordingSink::OnStep(std::move(event));
  }
  void OnEnd(absl::Status status) override {
    EXPECT_TRUE(IsIdle(*engine));
    EXPECT_EQ(engine->Abort(id.load()).code(), absl::StatusCode::kNotFound);
    RecordingSink::OnEnd(std::move(status));
  }
  Engine* engine = nullptr;
  std::atomic<uint64_t> id{0};
};

TEST_F(EngineTest, CallbacksMayCallTheEngine) {
  Start();
  const auto sink = std::make_shared<ReentrantSink>();
  sink->engine = engine_.get();
  gate_.Hold();
  sink->id = Submit(*engine_, Script::Generate(Prompt(9), 50), sink).value();
  gate_.WaitHeld();
  gate_.Open();
  const StreamRecord record = sink->WaitEnd();
  EXPECT_EQ(record.end->code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(record.tokens, SizeIs(3));
}

}  // namespace
}  // namespace recurve
