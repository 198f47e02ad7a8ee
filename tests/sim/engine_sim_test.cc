// The real engine with many clients at once, on a model whose tokens change
// with any mistake in memory: whatever else runs, however steps are cut, each
// request gets what it gets alone.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
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
  if (random.Chance(0.3)) fake.vocab_size = 3000;
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
    }
    command.generate = random.Uniform(command.append.empty() ? 1 : 0, 60);
    const int64_t mode = random.Uniform(0, 19);
    if (mode == 0 && (!whole || static_cast<int64_t>(command.append.size()) <=
                                    limits.max_prompt_logits)) {
      command.logits = LogitsMode::kAll;
    }
    if (mode == 1 || mode == 2) command.logits = LogitsMode::kNext;
    room -= static_cast<int64_t>(command.append.size()) + command.generate;
    script.commands.push_back(std::move(command));
  }
  return script;
}

// One client: submits, comes back after stalls, sends its next command when the
// last is done, perhaps goes away half-way. Driven by polling.
class Client {
 public:
  Client(Script script, uint64_t seed)
      : script_(std::move(script)), random_(seed) {
    stall_probability_ = random_.Chance(0.3) ? 0.1 : 0;
    if (random_.Chance(0.2)) cancel_after_ = random_.Uniform(0, 60);
    pipelines_ = random_.Chance(0.3);
    sink_ = std::make_shared<RecordingSink>(
        [this, stalls = TestRandom(seed + 1)]() mutable {
          return stalls.Chance(stall_probability_);
        });
  }

  void Start(Engine& engine) {
    const bool one = script_.commands.size() == 1;
    const absl::StatusOr<uint64_t> id = Submit(engine, script_, sink_, one);
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
    if (pipelines_ && !one) {
      while (next_ < script_.commands.size())
        engine.Extend(id_, script_.commands[next_++]);
      engine.Close(id_);
      closed_ = true;
    }
    closed_ |= one;
  }

  // Does what is due. Returns whether the stream has ended.
  bool Poll(Engine& engine) {
    const StreamRecord record = sink_->Record();
    if (record.end) return true;
    if (sink_->TakeStall()) engine.Resume(id_);
    if (cancel_after_ &&
        static_cast<int64_t>(record.tokens.size()) >= *cancel_after_) {
      cancel_after_.reset();
      engine.Cancel(id_, absl::CancelledError("the client left"));
    }
    if (!closed_ && record.results.size() == next_ && random_.Chance(0.3)) {
      if (next_ < script_.commands.size()) {
        engine.Extend(id_, script_.commands[next_++]);
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
      if (script_.commands.size() == 1) {
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
  }

  const Script& script() const { return script_; }

 private:
  const Script script_;
  TestRandom random_;
  double stall_probability_ = 0;
  std::optional<int64_t> cancel_after_;  // tokens
  bool pipelines_ = false;               // sends all commands at once
  std::shared_ptr<RecordingSink> sink_;
  uint64_t id_ = 0;
  size_t next_ = 1;  // command to send
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

EngineLoad RunSeed(uint64_t seed, bool runs_ahead) {
  TestRandom random(seed);
  FakeRunnerOptions fake = RandomModel(random);
  fake.runs_ahead = runs_ahead;
  const auto tokenizer = *BytesTokenizer::Make(
      static_cast<int32_t>(fake.vocab_size), /*bos_id=*/256, /*eos_id=*/257);
  const auto engine =
      MakeEngine(RandomOptions(fake, random), fake, tokenizer.get());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    const Script script = RandomScript(fake, engine->limits(), random);
    clients.push_back(std::make_unique<Client>(script, random.Next()));
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
    clients[i]->CheckAgainst(
        RunSolo(fake, clients[i]->script(), tokenizer.get()));
  }
  return engine->load();
}

TEST(EngineSimTest, EveryRequestGetsWhatItGetsAlone) {
  EngineLoad sum;
  // What clients meet depends on how threads run: it goes on until there was
  // everything, saves among them whose request was cancelled before it came
  // back.
  const auto met_all = [&sum] {
    return sum.preemptions_total > 0 && sum.restores_total > 0 &&
           sum.saves_total > sum.restores_total && sum.recomputes_total > 0 &&
           sum.cached_prompt_tokens_total > 0;
  };
  const uint64_t seeds = SimSeeds(16);
  for (uint64_t seed = 0; seed < seeds || (seed < 20 * seeds && !met_all());
       ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const EngineLoad load = RunSeed(seed, /*runs_ahead=*/seed % 2 == 1);
    sum.preemptions_total += load.preemptions_total;
    sum.saves_total += load.saves_total;
    sum.restores_total += load.restores_total;
    sum.recomputes_total += load.recomputes_total;
    sum.cached_prompt_tokens_total += load.cached_prompt_tokens_total;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(sum.preemptions_total, 0u);
  EXPECT_GT(sum.restores_total, 0u);
  EXPECT_GT(sum.saves_total, sum.restores_total);
  EXPECT_GT(sum.recomputes_total, 0u);
  EXPECT_GT(sum.cached_prompt_tokens_total, 0u);
}

}  // namespace
}  // namespace recurve
