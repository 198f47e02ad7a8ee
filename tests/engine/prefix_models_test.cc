// The prefix cache with every golden set and the demo model: what continues
// from a snapshot has the tokens and logits of a cold run, bit for bit.

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

INSTANTIATE_TEST_SUITE_P(Models, PrefixModelsTest,
                         testing::ValuesIn(GoldenCases()),
                         [](const auto& info) {
                           return GoldenTestName(info.param.model) + "_" +
                                  info.param.type;
                         });

}  // namespace
}  // namespace recurve
