// 64 requests at once on models of gated delta rules, lightning and softmax
// attention, with too little memory, cancels and shared beginnings: each gets
// the tokens and logits that it gets alone, bit for bit.

#include <algorithm>
#include <memory>
#include <string>
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

constexpr uint64_t kRequests = 64;

std::vector<GoldenCase> HybridCases() {
  std::vector<GoldenCase> cases = GoldenCases();
  std::erase_if(cases, [](const GoldenCase& of) {
    return of.model.rfind("qwen", 0) != 0 && of.model.rfind("olmo", 0) != 0 &&
           of.model.rfind("minicpm", 0) != 0;
  });
  return cases;
}

class HybridLoadTest : public OnTestDevice<testing::TestWithParam<GoldenCase>> {
 protected:
  std::unique_ptr<Engine> Load(bool alone, int64_t swap_bytes = 0) {
    ModelOptions model;
    model.path = GetParam().path();
    model.dtype = GetParam().type;
    model.num_threads = 2;
    model.device = kTestDevice;
    model.kv_pages = alone ? 64 : 9;
    model.swap_bytes = swap_bytes;
    // Without either, a preempted sequence is computed again.
    model.prefix_cache_bytes = swap_bytes > 0 ? int64_t{64} << 20 : 0;
    EngineOptions options;
    options.max_num_seqs = 6;
    options.max_num_batched_tokens = 128;
    options.max_chunk_tokens = kTestOnGpu ? 100 : 50;
    options.max_model_len = 320;
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
};

Script RandomScript(uint64_t seed, int64_t vocab) {
  TestRandom random(seed);
  // Every second one continues one of three texts.
  std::vector<int32_t> prompt;
  if (seed % 2 == 0) {
    prompt = TestRandom(1000 + seed % 3).Tokens(130, vocab);
  }
  const std::vector<int32_t> rest =
      random.Tokens(random.Uniform(1, 120), vocab);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  Script script = Script::Generate(std::move(prompt), random.Uniform(1, 40),
                                   LogitsMode::kNext);
  script.options.stopping.ignore_eos = true;
  script.options.sampling.seed = seed;
  script.options.sampling.temperature = random.Chance(0.5) ? 0.8f : 0.0f;
  // Those who come late are more important, so that memory changes hands.
  script.options.priority = static_cast<int32_t>(seed / 6);
  return script;
}

TEST_P(HybridLoadTest, OthersDoNotChangeABit) {
  const auto alone = Load(true);
  ASSERT_NE(alone, nullptr);
  const int64_t vocab = alone->model().vocab_size;
  std::vector<StreamRecord> solo;
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    solo.push_back(RunAlone(*alone, RandomScript(seed, vocab)));
  }
  for (const int64_t swap_bytes : {int64_t{0}, int64_t{16} << 20}) {
    SCOPED_TRACE(swap_bytes);
    const auto engine = Load(false, swap_bytes);
    ASSERT_NE(engine, nullptr);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (uint64_t seed = 0; seed < kRequests; ++seed) {
      sinks.push_back(std::make_shared<RecordingSink>());
      const auto id = Submit(*engine, RandomScript(seed, vocab), sinks.back());
      ASSERT_TRUE(id.ok()) << id.status();
      if (seed % 6 != 5) continue;
      sinks[seed - 5]->WaitTokens(1);
      engine->Cancel(*id, absl::CancelledError("the client left"));
    }
    for (uint64_t seed = 0; seed < kRequests; ++seed) {
      SCOPED_TRACE(seed);
      const StreamRecord record = sinks[seed]->WaitEnd();
      EXPECT_EQ(record.violation, "");
      ASSERT_TRUE(record.end);
      const bool whole = record.end->ok();
      EXPECT_TRUE(whole || seed % 6 == 5) << *record.end;
      // A cancelled one has got the beginning.
      const StreamRecord& want = solo[seed];
      ASSERT_LE(record.tokens.size(), want.tokens.size());
      if (whole) {
        EXPECT_EQ(record.tokens.size(), want.tokens.size());
      }
      EXPECT_TRUE(std::equal(record.tokens.begin(), record.tokens.end(),
                             want.tokens.begin()));
      ASSERT_LE(record.logits.size(), want.logits.size());
      for (size_t i = 0; i < record.logits.size(); ++i) {
        EXPECT_EQ(record.logits[i].values, want.logits[i].values);
      }
    }
    EXPECT_TRUE(IsIdle(*engine));
    const EngineLoad load = engine->load();
    EXPECT_GT(swap_bytes == 0 ? load.recomputes_total : load.restores_total,
              0u);
    if (swap_bytes > 0) {
      EXPECT_GT(load.cached_prompt_tokens_total, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HybridLoadTest,
                         testing::ValuesIn(HybridCases()),
                         [](const auto& info) {
                           return GoldenTestName(info.param.model) + "_" +
                                  info.param.type;
                         });

}  // namespace
}  // namespace recurve
