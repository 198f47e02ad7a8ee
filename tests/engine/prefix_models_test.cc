// The prefix cache with every golden set and the demo model: what continues
// from a snapshot has the tokens and logits of a cold run, bit for bit.

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/golden_sets.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

std::unique_ptr<Engine> Load(const GoldenCase& c, int64_t prefix_cache_bytes) {
  ModelOptions model;
  model.path = c.path();
  model.num_threads = 2;
  model.device = kTestDevice;
  model.dtype = c.type;
  model.kv_pages = 256;
  model.swap_bytes = 0;
  model.prefix_cache_bytes = prefix_cache_bytes;
  EngineOptions options;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 1024;
  options.poison_released = true;
  options.min_end_tokens = 128;
  auto loaded = LoadModel(model, &options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return nullptr;
  auto engine =
      Engine::Create(options, std::move(loaded->runner), nullptr, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

class PrefixModelsTest
    : public OnTestDevice<testing::TestWithParam<GoldenCase>> {};

TEST_P(PrefixModelsTest, HitsHaveTheBitsOfColdRuns) {
  const auto engine = Load(GetParam(), int64_t{256} << 20);
  const auto cold = Load(GetParam(), 0);
  ASSERT_TRUE(engine != nullptr && cold != nullptr);
  const int64_t vocab = engine->model().vocab_size;
  const int64_t longest = engine->model().max_position_embeddings - 20;
  TestRandom random(11);
  // Both sides of kShortPromptTokens, where the model takes as many.
  const std::vector<int32_t> text = random.Tokens(900, vocab);
  std::vector<int32_t> last;
  int64_t cached = 0;
  for (const auto& [shared, own, after] :
       {std::tuple(0, 90, false), std::tuple(90, 0, false),
        std::tuple(70, 33, false), std::tuple(70, 50, false),
        std::tuple(0, 20, true), std::tuple(0, 130, true),
        std::tuple(640, 70, false), std::tuple(640, 90, false),
        std::tuple(640, 64, false), std::tuple(0, 31, true)}) {
    std::vector<int32_t> prompt(text.begin(), text.begin() + shared);
    if (after) prompt = last;  // the next turn of a conversation
    const std::vector<int32_t> more = random.Tokens(own, vocab);
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (static_cast<int64_t>(prompt.size()) > longest) prompt.resize(longest);
    Script script = Script::Generate(prompt, 9, LogitsMode::kNext);
    script.options.stopping.ignore_eos = true;
    SCOPED_TRACE(testing::Message() << shared << " and " << own);
    const StreamRecord got = RunAlone(*engine, script);
    const StreamRecord want = RunAlone(*cold, script);
    ASSERT_TRUE(got.end && got.end->ok()) << *got.end;
    EXPECT_EQ(got.tokens, want.tokens);
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t i = 0; i < got.logits.size(); ++i) {
      ASSERT_EQ(got.logits[i].values, want.logits[i].values) << i;
    }
    cached += got.results[0].cache.cached_tokens;
    EXPECT_EQ(want.results[0].cache.miss, CacheMiss::kDisabled);
    last = prompt;
    last.insert(last.end(), got.tokens.begin(), got.tokens.end());
  }
  if (engine->limits().max_prompt_tokens > 0) {  // prompts as a whole
    EXPECT_EQ(cached, 0);
  } else if (longest >= 150) {
    EXPECT_GT(cached, 0);
  }
  EXPECT_TRUE(IsIdle(*engine));
}

// The first token is drawn from logits that were kept, on the host.
TEST_P(PrefixModelsTest, EqualPromptsHaveTheBitsOfColdRuns) {
  const auto engine = Load(GetParam(), int64_t{256} << 20);
  const auto cold = Load(GetParam(), 0);
  ASSERT_TRUE(engine != nullptr && cold != nullptr);
  const int64_t longest = engine->model().max_position_embeddings - 20;
  TestRandom random(13);
  for (const int64_t length : {128, 200, 511, 700}) {
    if (length > longest) continue;
    SCOPED_TRACE(length);
    const std::vector<int32_t> prompt =
        random.Tokens(length, engine->model().vocab_size);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Script script = Script::Generate(prompt, 9);
      script.options.stopping.ignore_eos = true;
      SamplingParams& sampling = script.options.sampling;
      sampling.seed = seed;
      sampling.temperature = seed == 1 ? 0.0f : 0.9f;
      sampling.repetition_penalty = seed == 2 ? 1.2f : 1.0f;
      sampling.top_p = seed == 3 ? 0.7f : 1.0f;
      sampling.num_logprobs = 0;
      const StreamRecord got = RunAlone(*engine, script);
      const StreamRecord want = RunAlone(*cold, script);
      ASSERT_TRUE(got.end && got.end->ok()) << *got.end;
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.logprobs, want.logprobs);
      if (engine->limits().max_prompt_tokens == 0) {
        EXPECT_EQ(got.results[0].cache.cached_tokens, seed == 0 ? 0 : length);
      }
    }
  }
  EXPECT_TRUE(IsIdle(*engine));
}

// A sequence that is driven command by command.
class Driven {
 public:
  explicit Driven(Engine& engine, SequenceStatePtr from = nullptr)
      : engine_(engine), from_(std::move(from)) {
    options_.stopping.ignore_eos = true;
    options_.sampling.repetition_penalty = 1.2f;
    options_.sampling.presence_penalty = 0.5f;
  }

  // What the command alone brought.
  StreamRecord Run(Command command) {
    const StreamRecord before = sink_->Record();
    if (command.rollback_to) sink_->ExpectRollback(kept_output_);
    if (id_ == 0) {
      Engine::Submission first{options_, std::move(command),
                               /*close_when_done=*/false, sink_};
      first.from = std::exchange(from_, nullptr);
      const auto id = engine_.Submit(std::move(first));
      EXPECT_TRUE(id.ok()) << id.status();
      id_ = id.value_or(0);
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
  // The state now.
  absl::StatusOr<SequenceStatePtr> Take() {
    std::promise<absl::StatusOr<SequenceStatePtr>> taken;
    engine_.TakeState(0, id_, std::nullopt,
                      [&](auto state) { taken.set_value(std::move(state)); });
    return taken.get_future().get();
  }
  void NoteKept() {
    kept_output_ = sink_->Record().results.back().completion_tokens;
  }
  void Finish() {
    engine_.Close(id_);
    const StreamRecord record = sink_->WaitEnd();
    EXPECT_TRUE(record.end->ok()) << *record.end;
  }

 private:
  Engine& engine_;
  SequenceOptions options_;
  SequenceStatePtr from_;
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  uint64_t id_ = 0;
  int64_t kept_output_ = 0;
};

Command CommandOf(std::vector<int32_t> append, int64_t generate) {
  Command command;
  command.append = std::move(append);
  command.generate = generate;
  if (generate > 0) command.logits = LogitsMode::kNext;
  return command;
}

void ExpectSame(const StreamRecord& got, const StreamRecord& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  ASSERT_EQ(got.logits.size(), want.logits.size());
  for (size_t i = 0; i < got.logits.size(); ++i) {
    EXPECT_EQ(got.logits[i].position, want.logits[i].position);
    ASSERT_EQ(got.logits[i].values, want.logits[i].values) << i;
  }
}

// A copy of a state in another engine, block by block.
absl::StatusOr<SequenceStatePtr> Moved(Engine& from, const SequenceState& state,
                                       Engine& to) {
  std::promise<absl::StatusOr<SequenceStatePtr>> made;
  to.MakeState({state.tokens, state.kinds, {}, {}}, state.computed.tokens,
               [&](auto copy) { made.set_value(std::move(copy)); });
  auto copy = made.get_future().get();
  if (!copy.ok()) return copy;
  const auto source = from.BlocksOf(state);
  const auto target = to.BlocksOf(**copy);
  if (!source.ok()) return source.status();
  if (!target.ok()) return target.status();
  for (size_t i = 0; i < source->size(); ++i) {
    std::memcpy((*target)[i].data(), (*source)[i].data(), (*target)[i].size());
  }
  return copy;
}

// States, rollbacks and moved states, after generated tokens and after a
// prompt.
TEST_P(PrefixModelsTest, StatesGoOnWithTheSameBits) {
  const auto engine = Load(GetParam(), int64_t{256} << 20);
  const auto other = Load(GetParam(), int64_t{256} << 20);
  ASSERT_TRUE(engine != nullptr && other != nullptr);
  if (!engine->CheckStates().ok()) {  // prompts as a whole
    EXPECT_GT(engine->limits().max_prompt_tokens, 0);
    return;
  }
  const int64_t vocab = engine->model().vocab_size;
  const int64_t room = engine->model().max_position_embeddings;
  TestRandom random(12);
  for (const int64_t length : {3, 40, 130, 450}) {
    if (length + 90 > room) continue;
    SCOPED_TRACE(length);
    const std::vector<int32_t> prompt = random.Tokens(length, vocab);
    const std::vector<int32_t> more = random.Tokens(35, vocab);
    {
      Driven sequence(*engine);
      Command first = CommandOf(prompt, 7);
      first.keep = true;
      sequence.Run(std::move(first));
      sequence.NoteKept();
      const auto state = sequence.Take();
      ASSERT_TRUE(state.ok()) << state.status();
      const StreamRecord want = sequence.Run(CommandOf(more, 6));
      Command again = CommandOf(more, 6);
      again.rollback_to = length + 7;
      ExpectSame(sequence.Run(std::move(again)), want);
      sequence.Finish();
      // A state's tokens count as a prompt's, for penalties too.
      Driven here(*engine, *state);
      const StreamRecord from = here.Run(CommandOf(more, 6));
      here.Finish();
      ASSERT_EQ(from.logits.size(), want.logits.size());
      ASSERT_EQ(from.logits[0].values, want.logits[0].values);
      auto moved = Moved(*engine, **state, *other);
      ASSERT_TRUE(moved.ok()) << moved.status();
      Driven there(*other, *std::move(moved));
      ExpectSame(there.Run(CommandOf(more, 6)), from);
      there.Finish();
    }
    // The prompt computed here, its last row there.
    Driven prefill(*engine);
    prefill.Run(CommandOf(prompt, 0));
    const auto state = prefill.Take();
    ASSERT_TRUE(state.ok()) << state.status();
    const StreamRecord want = prefill.Run(CommandOf({}, 6));
    prefill.Finish();
    auto moved = Moved(*engine, **state, *other);
    ASSERT_TRUE(moved.ok()) << moved.status();
    Driven there(*other, *std::move(moved));
    const StreamRecord got = there.Run(CommandOf({}, 6));
    there.Finish();
    ASSERT_EQ(got.logits.size(), want.logits.size());
    ASSERT_EQ(got.logits[0].values, want.logits[0].values);
    Driven cold(*other);
    ASSERT_EQ(cold.Run(CommandOf(prompt, 1)).logits[0].values,
              got.logits[0].values);
    cold.Finish();
  }
  EXPECT_TRUE(IsIdle(*engine));
  EXPECT_TRUE(IsIdle(*other));
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixModelsTest,
                         testing::ValuesIn(GoldenCases()),
                         [](const auto& info) {
                           return GoldenTestName(info.param.model) + "_" +
                                  info.param.type;
                         });

}  // namespace
}  // namespace recurve
