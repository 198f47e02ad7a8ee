// The real engine with many clients at once, on a model whose tokens change
// with any mistake in memory: whatever else runs, however steps are cut, each
// request gets what it gets alone.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/tokenizer/bytes_tokenizer.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr int kClients = 64;
constexpr int kThreads = 4;
constexpr int64_t kMaxPrompt = 700;
constexpr int64_t kMaxTokens = 832;  // of a sequence: 13 pages

FakeRunnerOptions RandomModel(TestRandom& random) {
  FakeRunnerOptions fake;
  fake.num_slots = static_cast<int32_t>(random.Uniform(2, 12));
  fake.num_pages =
      random.Chance(0.1) ? 0 : static_cast<int32_t>(random.Uniform(13, 30));
  fake.eos_token_ids = {7};
  // All that is preempted is saved, or a part, or none.
  if (random.Chance(0.7))
    fake.num_host_blocks = static_cast<int32_t>(random.Uniform(3, 90));
  fake.restore_steps = random.Chance(0.5) ? random.Uniform(1, 5) : 0;
  fake.printable = random.Chance(0.7);  // else characters may be broken
  if (random.Chance(0.5))
    fake.chunk_multiple = int64_t{1} << random.Uniform(1, 6);
  fake.whole_prompts = random.Chance(0.5);
  // So large that steps give all rows of a prompt in pieces.
  if (random.Chance(0.1)) fake.vocab_size = 3000;
  return fake;
}

EngineOptions RandomOptions(const FakeRunnerOptions& fake, TestRandom& random) {
  EngineOptions options = OptionsFor(fake);
  options.max_model_len = kMaxTokens;
  options.max_num_seqs = random.Uniform(1, fake.num_slots);
  options.max_num_batched_tokens =
      options.max_num_seqs + fake.chunk_multiple - 1 + random.Uniform(0, 600);
  options.max_chunk_tokens =
      random.Uniform(fake.chunk_multiple, options.max_num_batched_tokens);
  if (random.Chance(0.5)) options.max_decode_slowdown = 2;
  options.prefix_cache = random.Chance(0.6);
  options.state_bytes = 1 << 20;
  options.min_end_tokens = 128;
  // A block has 512 bytes.
  options.preemption_bytes = 512 * random.Uniform(0, 20);
  return options;
}

void RandomStops(TestRandom& random, StoppingParams* stopping) {
  stopping->ignore_eos = random.Chance(0.5);
  if (random.Chance(0.3)) {
    for (int i = 0; i < 3; ++i) {
      std::string& stop = stopping->stop_strings.emplace_back();
      for (int64_t letters = random.Uniform(1, 3); letters > 0; --letters)
        stop.push_back(static_cast<char>(random.Uniform('a', 'n')));
    }
  }
  if (random.Chance(0.2)) stopping->stop_token_ids = {40, 41, 42};
}

// One that a server with these limits accepts.
Script RandomScript(const FakeRunnerOptions& fake, const RequestLimits& limits,
                    TestRandom& random) {
  Script script;
  script.options.priority = static_cast<int32_t>(random.Uniform(-1, 1));
  if (random.Chance(0.1)) script.options.cache_key = "own";
  RandomStops(random, &script.options.stopping);
  SamplingParams& sampling = script.options.sampling;
  sampling.seed = random.Next();
  if (random.Chance(0.2)) sampling.presence_penalty = 0.7f;
  if (random.Chance(0.2)) sampling.frequency_penalty = 0.3f;
  if (random.Chance(0.2)) {
    sampling.logit_bias = {{'a', 3.0f}, {'b', 3.0f}, {'c', 3.0f}};
  }
  if (random.Chance(0.7)) {
    sampling.temperature = 0.5f;
    sampling.top_k = static_cast<int32_t>(random.Uniform(0, 50));
    sampling.top_p = random.Chance(0.5) ? 0.9f : 1.0f;
    sampling.repetition_penalty = random.Chance(0.3) ? 1.2f : 1.0f;
    sampling.num_logprobs = random.Chance(0.2) ? 2 : -1;
  }
  const int64_t commands = random.Chance(0.25) ? random.Uniform(2, 4) : 1;
  int64_t room = kMaxTokens;
  for (int64_t i = 0; i < commands; ++i) {
    Command command;
    // Short ones are common, so that many fit at once.
    int64_t most =
        std::min(room - 80, i == 0 && random.Chance(0.4) ? kMaxPrompt : 100);
    const bool whole = i == 0 && fake.whole_prompts;
    if (whole) most = std::min(most, limits.max_prompt_tokens);
    if (most < 1) break;
    if (i == 0 || random.Chance(0.7))
      command.append = random.Tokens(random.Uniform(1, most), fake.vocab_size);
    // Many begin with a part of the same text.
    if (i == 0 && random.Chance(0.7)) {
      const std::vector<int32_t> common =
          TestRandom(random.Uniform(1, 2)).Tokens(kMaxPrompt, fake.vocab_size);
      std::copy_n(
          common.begin(),
          random.Uniform(0, static_cast<int64_t>(command.append.size())),
          command.append.begin());
      // Some are equal.
      if (random.Chance(0.4) && most >= 200) {
        command.append.assign(common.begin(), common.begin() + 200);
      }
    }
    command.generate = random.Uniform(1, 60);
    if (!command.append.empty() && random.Chance(0.15)) command.generate = 0;
    const int64_t mode = random.Uniform(0, 19);
    if (mode == 0 && (!whole || static_cast<int64_t>(command.append.size()) <=
                                    limits.max_prompt_logits)) {
      command.logits = LogitsMode::kAll;
    }
    if (mode == 1 || mode == 2) command.logits = LogitsMode::kNext;
    if (i == 0 && random.Chance(0.15) &&
        (!whole || static_cast<int64_t>(command.append.size()) <=
                       limits.max_scored_prompt)) {
      command.prompt_logprobs = static_cast<int32_t>(random.Uniform(0, 3));
    }
    room -= static_cast<int64_t>(command.append.size()) + command.generate;
    script.commands.push_back(std::move(command));
  }
  if (random.Chance(0.2)) {
    script.options.stopping.min_tokens =
        random.Uniform(0, script.commands[0].generate);
  }
  return script;
}

// A script whose commands may go back to the end of an earlier one.
struct Plan {
  Script script;
  std::vector<int> back_to;  // of each command; -1: nowhere
};

Plan RandomPlan(const FakeRunnerOptions& fake, const RequestLimits& limits,
                TestRandom& random) {
  Plan plan = {RandomScript(fake, limits, random), {}};
  std::vector<Command>& commands = plan.script.commands;
  plan.back_to.assign(commands.size(), -1);
  for (size_t i = 0; i < commands.size(); ++i) {
    commands[i].keep = random.Chance(0.5);
    if (i == 0 || random.Chance(0.6)) continue;
    // What a rollback forgets is not there for a later one.
    int back = static_cast<int>(random.Uniform(0, static_cast<int64_t>(i) - 1));
    for (size_t j = back + 1; j < i; ++j) {
      if (plan.back_to[j] >= 0) back = -1;
    }
    if (back >= 0 && commands[back].keep) plan.back_to[i] = back;
  }
  return plan;
}

// Command `index` of the plan, for a sequence that has given `record`.
Command Resolved(const Plan& plan, size_t index, const StreamRecord& record,
                 RecordingSink& sink) {
  Command command = plan.script.commands[index];
  if (plan.back_to[index] >= 0) {
    const CommandResult& back = record.results[plan.back_to[index]];
    command.rollback_to = back.sequence_tokens;
    sink.ExpectRollback(back.completion_tokens);
  }
  return command;
}

// An engine that has room for any one sequence.
std::unique_ptr<Engine> AmpleEngine(FakeRunnerOptions fake,
                                    const Tokenizer* tokenizer) {
  if (fake.num_pages > 0) fake.num_pages = 64;
  fake.num_slots = 1;
  EngineOptions options = OptionsFor(fake);
  options.max_num_batched_tokens = options.max_chunk_tokens = 4096;
  options.prefix_cache = true;
  options.state_bytes = 1 << 20;
  return MakeEngine(options, fake, tokenizer);
}

// Runs the plan on an otherwise idle engine.
StreamRecord RunAlone(Engine& engine, const Plan& plan) {
  const auto sink = std::make_shared<RecordingSink>();
  const auto id =
      Submit(engine, plan.script, sink, plan.script.commands.size() == 1);
  EXPECT_TRUE(id.ok()) << id.status();
  for (size_t i = 1; i < plan.script.commands.size(); ++i) {
    const StreamRecord record = sink->WaitCommands(i);
    if (record.end) break;
    engine.Extend(*id, Resolved(plan, i, record, *sink));
  }
  engine.Close(*id);
  return sink->WaitEnd();
}

// A sequence that goes on from a state of a client's.
struct Branch {
  SequenceStatePtr state;  // until it has started
  SequenceState value;     // tokens and kinds, for the check
  Script script;
  std::shared_ptr<RecordingSink> sink;
};

absl::Status Start(Engine& engine, Branch& branch) {
  Engine::Submission submission{branch.script.options,
                                branch.script.commands[0],
                                /*close_when_done=*/true, branch.sink};
  submission.from = std::exchange(branch.state, nullptr);
  return engine.Submit(std::move(submission)).status();
}

// One client: submits, comes back after stalls, sends its next command when the
// last is done, perhaps goes away half-way. Driven by polling.
class Client {
 public:
  Client(Plan plan, uint64_t seed) : plan_(std::move(plan)), random_(seed) {
    stall_probability_ = random_.Chance(0.3) ? 0.1 : 0;
    if (random_.Chance(0.2)) cancel_after_ = random_.Uniform(0, 60);
    pipelines_ = random_.Chance(0.3) &&
                 std::count(plan_.back_to.begin(), plan_.back_to.end(), -1) ==
                     static_cast<int64_t>(plan_.back_to.size());
    sink_ = std::make_shared<RecordingSink>(
        [this, stalls = TestRandom(seed + 1)]() mutable {
          return stalls.Chance(stall_probability_);
        });
  }

  void Start(Engine& engine) {
    const Script& script = plan_.script;
    const bool one = script.commands.size() == 1;
    const absl::StatusOr<uint64_t> id = Submit(engine, script, sink_, one);
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
    if (pipelines_ && !one) {
      while (next_ < script.commands.size())
        engine.Extend(id_, script.commands[next_++]);
      engine.Close(id_);
      closed_ = true;
    }
    closed_ |= one;
  }

  // Does what is due. Returns whether the stream has ended.
  bool Poll(Engine& engine) {
    StartBranches(engine);
    const StreamRecord record = sink_->Record();
    if (record.end) return BranchesEnded();
    if (sink_->TakeStall()) engine.Resume(id_);
    if (cancel_after_ &&
        static_cast<int64_t>(record.tokens.size()) >= *cancel_after_) {
      cancel_after_.reset();
      engine.Cancel(id_, absl::CancelledError("the client left"));
    }
    if (!closed_ && record.results.size() == next_ && asked_ < next_ &&
        random_.Chance(0.3)) {
      asked_ = next_;
      {
        MutexLock lock(&mu_);
        ++pending_;
      }
      engine.TakeState(0, id_, std::nullopt,
                       [this](absl::StatusOr<SequenceStatePtr> state) {
                         MutexLock lock(&mu_);
                         --pending_;
                         if (state.ok()) taken_.push_back(*std::move(state));
                       });
    }
    if (!closed_ && record.results.size() == next_ && random_.Chance(0.3)) {
      if (next_ < plan_.script.commands.size()) {
        engine.Extend(id_, Resolved(plan_, next_, record, *sink_));
        ++next_;
      } else {
        engine.Close(id_);
        closed_ = true;
      }
    }
    return false;
  }

  void CheckAgainst(const StreamRecord& solo) const {
    const StreamRecord record = sink_->Record();
    EXPECT_EQ(record.violation, "");
    ASSERT_TRUE(solo.end && solo.end->ok());
    ASSERT_TRUE(record.end);
    if (record.end->ok()) {
      EXPECT_EQ(record.tokens, solo.tokens);
      EXPECT_EQ(record.text, solo.text);
      EXPECT_EQ(record.logprobs, solo.logprobs);
      EXPECT_EQ(record.LogitsPositions(), solo.LogitsPositions());
      ASSERT_EQ(record.results.size(), solo.results.size());
      // With more commands it depends on their timing whether text held back by
      // one is checked before the next.
      if (plan_.script.commands.size() == 1) {
        EXPECT_EQ(record.results[0].reason, solo.results[0].reason);
        EXPECT_EQ(record.results[0].stop_string, solo.results[0].stop_string);
      }
    } else {
      EXPECT_EQ(record.end->code(), absl::StatusCode::kCancelled)
          << *record.end;
      ASSERT_LE(record.tokens.size(), solo.tokens.size());
      EXPECT_TRUE(std::equal(record.tokens.begin(), record.tokens.end(),
                             solo.tokens.begin()));
      EXPECT_EQ(record.text, solo.text.substr(0, record.text.size()));
    }
    ASSERT_LE(record.logits.size(), solo.logits.size());
    for (size_t i = 0; i < record.logits.size(); ++i) {
      ASSERT_EQ(record.logits[i].position, solo.logits[i].position);
      ASSERT_EQ(record.logits[i].values, solo.logits[i].values);
    }
    ASSERT_LE(record.prompt_logprobs.size(), solo.prompt_logprobs.size());
    for (size_t i = 0; i < record.prompt_logprobs.size(); ++i) {
      ASSERT_EQ(record.prompt_logprobs[i].token, solo.prompt_logprobs[i].token);
      ASSERT_EQ(record.prompt_logprobs[i].logprob,
                solo.prompt_logprobs[i].logprob);
      ASSERT_EQ(record.prompt_logprobs[i].top, solo.prompt_logprobs[i].top);
    }
  }

  // Each branch is what a sequence of the same tokens and kinds is that is
  // computed cold.
  void CheckBranches(const FakeRunnerOptions& fake,
                     const Tokenizer* tokenizer) {
    if (branches_.empty()) return;
    const auto engine = AmpleEngine(fake, tokenizer);
    for (Branch& branch : branches_) {
      const StreamRecord got = branch.sink->Record();
      ASSERT_TRUE(got.end);
      EXPECT_EQ(got.violation, "");
      ASSERT_TRUE(got.end->ok()) << *got.end;
      std::promise<absl::StatusOr<SequenceStatePtr>> made;
      engine->MakeState(branch.value, 0,
                        [&](auto state) { made.set_value(std::move(state)); });
      branch.state = *made.get_future().get();
      branch.sink = std::make_shared<RecordingSink>();
      ASSERT_TRUE(recurve::Start(*engine, branch).ok());
      const StreamRecord want = branch.sink->WaitEnd();
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.text, want.text);
      EXPECT_EQ(got.logprobs, want.logprobs);
    }
  }

  const Plan& plan() const { return plan_; }
  // Whether nothing of its first prompt was computed.
  bool found_its_end() const {
    const StreamRecord record = sink_->Record();
    return !record.results.empty() &&
           record.results[0].cache.cached_tokens >=
               static_cast<int64_t>(plan_.script.commands[0].append.size());
  }
  int64_t branches() const { return static_cast<int64_t>(branches_.size()); }

 private:
  void StartBranches(Engine& engine) {
    std::vector<SequenceStatePtr> taken;
    {
      MutexLock lock(&mu_);
      taken.swap(taken_);
    }
    for (SequenceStatePtr& state : taken) {
      Branch branch;
      branch.value.tokens = state->tokens;
      branch.value.kinds = state->kinds;
      branch.script.options = plan_.script.options;
      branch.script.options.sampling.seed = random_.Next();
      branch.script.options.snapshot_at.clear();
      branch.script.options.stopping.min_tokens = 0;
      const int64_t room = kMaxTokens - state->num_tokens();
      if (room < 40) continue;
      Command command;
      if (random_.Chance(0.6)) {
        command.append =
            random_.Tokens(random_.Uniform(1, room / 2), /*vocab_size=*/256);
      }
      command.generate = random_.Uniform(1, 15);
      branch.script.commands.push_back(std::move(command));
      branch.state = std::move(state);
      branch.sink = std::make_shared<RecordingSink>();
      const absl::Status started = recurve::Start(engine, branch);
      EXPECT_TRUE(started.ok()) << started;
      branches_.push_back(std::move(branch));
    }
  }
  bool BranchesEnded() {
    {
      MutexLock lock(&mu_);
      if (pending_ > 0 || !taken_.empty()) return false;
    }
    return std::all_of(branches_.begin(), branches_.end(), [](const Branch& b) {
      return b.sink->Record().end.has_value();
    });
  }

  const Plan plan_;
  TestRandom random_;
  double stall_probability_ = 0;
  std::optional<int64_t> cancel_after_;  // tokens
  bool pipelines_ = false;               // sends all commands at once
  std::shared_ptr<RecordingSink> sink_;
  uint64_t id_ = 0;
  size_t next_ = 1;   // command to send
  size_t asked_ = 0;  // next_ when it last asked for a state
  Mutex mu_;
  int pending_ ABSL_GUARDED_BY(mu_) = 0;  // states it has asked for
  std::vector<SequenceStatePtr> taken_ ABSL_GUARDED_BY(mu_);
  std::vector<Branch> branches_;
  bool closed_ = false;
};

// Starts its share of the clients, a few at a time, and sees them through.
void Drive(Engine& engine, std::vector<std::unique_ptr<Client>>& clients,
           int first) {
  std::vector<Client*> running;
  for (int i = first; i < kClients || !running.empty();) {
    if (i < kClients && running.size() < 8) {
      ASSERT_NO_FATAL_FAILURE(clients[i]->Start(engine));
      running.push_back(clients[i].get());
      i += kThreads;
    }
    for (size_t r = 0; r < running.size();) {
      if (running[r]->Poll(engine)) {
        running.erase(running.begin() + static_cast<int64_t>(r));
      } else {
        ++r;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

struct Met {
  int64_t branches = 0;  // from states
  int64_t ends = 0;      // of which nothing was computed
};

EngineLoad RunSeed(uint64_t seed, bool runs_ahead, Met* met) {
  TestRandom random(seed);
  FakeRunnerOptions fake = RandomModel(random);
  fake.runs_ahead = runs_ahead;
  const auto tokenizer = *BytesTokenizer::Make(
      static_cast<int32_t>(fake.vocab_size), /*bos_id=*/256, /*eos_id=*/257);
  const auto engine =
      MakeEngine(RandomOptions(fake, random), fake, tokenizer.get());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    Plan plan = RandomPlan(fake, engine->limits(), random);
    clients.push_back(std::make_unique<Client>(std::move(plan), random.Next()));
  }
  std::vector<std::thread> threads;
  for (int first = 0; first < kThreads; ++first) {
    threads.emplace_back([&, first] { Drive(*engine, clients, first); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(IsIdle(*engine));
  EXPECT_TRUE(engine->health().ok()) << engine->health();
  for (int i = 0; i < kClients; ++i) {
    SCOPED_TRACE(testing::Message() << "client " << i);
    fake.runs_ahead = false;
    const auto solo = AmpleEngine(fake, tokenizer.get());
    clients[i]->CheckAgainst(RunAlone(*solo, clients[i]->plan()));
    clients[i]->CheckBranches(fake, tokenizer.get());
    met->branches += clients[i]->branches();
    met->ends += clients[i]->found_its_end();
  }
  return engine->load();
}

TEST(EngineSimTest, EveryRequestGetsWhatItGetsAlone) {
  EngineLoad sum;
  Met met;
  // What clients meet depends on how threads run: it goes on until there was
  // everything, saves among them whose request was cancelled before it came
  // back.
  const auto met_all = [&sum, &met] {
    return sum.preemptions_total > 0 && sum.restores_total > 0 &&
           sum.saves_total > sum.restores_total && sum.recomputes_total > 0 &&
           sum.cached_prompt_tokens_total > 0 && met.branches > 0 &&
           met.ends > 0;
  };
  const uint64_t seeds = SimSeeds(2000);
  for (uint64_t seed = 0; seed < seeds || (seed < 2000 && !met_all()); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const EngineLoad load = RunSeed(seed, /*runs_ahead=*/seed % 2 == 1, &met);
    sum.preemptions_total += load.preemptions_total;
    sum.saves_total += load.saves_total;
    sum.restores_total += load.restores_total;
    sum.recomputes_total += load.recomputes_total;
    sum.cached_prompt_tokens_total += load.cached_prompt_tokens_total;
    sum.steps_total += load.steps_total;
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%llu steps\n", static_cast<unsigned long long>(sum.steps_total));
  EXPECT_GT(sum.preemptions_total, 0u);
  EXPECT_GT(sum.restores_total, 0u);
  EXPECT_GT(sum.saves_total, sum.restores_total);
  EXPECT_GT(sum.recomputes_total, 0u);
  EXPECT_GT(sum.cached_prompt_tokens_total, 0u);
  EXPECT_GT(met.branches, 0);
  EXPECT_GT(met.ends, 0);
}

}  // namespace
}  // namespace recurve
