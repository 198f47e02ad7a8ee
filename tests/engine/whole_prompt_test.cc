// Models with layers that look at a prompt as a whole ("causal": false): what
// such a layer leaves, and that a sequence's tokens and logits are the same
// whatever else runs, also when it loses its memory, which is saved, or not and
// computed again.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/status_codes.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::SizeIs;

class WholePromptTest : public OnTestDevice<> {
 protected:
  // With `layers`; weights are multiples of 1/64, which bfloat16 holds.
  void Write(const std::vector<json>& layers) {
    tiny_.config["hidden_size"] = 32;
    tiny_.config["layers"] = layers;
    tiny_.config["num_hidden_layers"] = layers.size();
    tiny_.FillTensors();
    tiny_.SetDType(DType::kBFloat16);
    tiny_.Write(path());
  }
  std::string path() const { return folder_.path() + "/model"; }

  static json Linear(bool causal, const std::string& type = "lrpe_rotate") {
    json position = {{"type", type}};
    if (type != "none") position["base"] = 100.0;
    return {{"mixer", "linear"},        {"num_heads", 2},
            {"head_dim", 32},           {"value_dim", 24},
            {"q_activation", "silu"},   {"k_activation", "silu"},
            {"output_gate", "sigmoid"}, {"position", position},
            {"causal", causal}};
  }
  // All kinds: those that the GPU has a kernel for, and one it has not.
  static std::vector<json> Mixed() {
    json relu = Linear(false, "none");
    relu["k_activation"] = "relu";
    json decays = Linear(true);
    decays["log_decay"] = {-0.25, -0.01};
    return {Linear(false), tiny_tpa(), relu, decays,
            Linear(false, "lrpe_cosine")};
  }
  static json tiny_tpa() {
    return TinyCheckpoint::Hybrid().config["layers"][0];
  }

  std::unique_ptr<Engine> Load(EngineOptions options, int64_t kv_pages = 64,
                               const char* device = kTestDevice,
                               int64_t swap_bytes = int64_t{1} << 20) {
    ModelOptions model;
    model.path = path();
    model.device = device;
    model.num_threads = 2;
    model.kv_pages = kv_pages;
    model.swap_bytes = swap_bytes;
    options.poison_released = true;
    auto loaded = LoadModel(model, &options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return nullptr;
    auto engine =
        Engine::Create(options, std::move(loaded->runner), nullptr, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  static Script All(int64_t prompt, int64_t generate) {
    Script script = Script::Generate(TestRandom(5).Tokens(prompt, 256),
                                     generate, LogitsMode::kAll);
    script.options.stopping.ignore_eos = true;
    return script;
  }

  TempFolder folder_;
  TinyCheckpoint tiny_ = TinyCheckpoint::Hybrid();
};

double RelativeError(const std::vector<float>& got,
                     const std::vector<float>& want) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / norm);
}

// In a model with one such layer, the last token of the prompt sees the same as
// in a causal layer, and so do later ones. The others also see later tokens.
TEST_F(WholePromptTest, TheLastTokenOfAPromptIsAsInACausalLayer) {
  for (const char* position : {"none", "lrpe_rotate", "lrpe_cosine"}) {
    for (int64_t prompt : {1, 2, 31, 70, 200}) {
      SCOPED_TRACE(testing::Message() << position << ", prompt " << prompt);
      Write({Linear(true, position)});
      const StreamRecord causal = RunAlone(*Load({}), All(prompt, 5));
      Write({Linear(false, position)});
      const StreamRecord whole = RunAlone(*Load({}), All(prompt, 5));
      ASSERT_THAT(causal.logits, SizeIs(prompt + 4));
      ASSERT_THAT(whole.logits, SizeIs(prompt + 4));
      for (int64_t i = 0; i < prompt + 4; ++i) {
        const auto& got = whole.logits[i].values;
        const auto& want = causal.logits[i].values;
        const double error = RelativeError(got, want);
        if (i < prompt - 1) {
          EXPECT_GT(error, kTestOnGpu ? 0.0 : 1e-3) << i;
        } else if (kTestOnGpu) {
          EXPECT_LT(error, 0.1) << i;  // products of bfloat16; a wrong state: 1
        } else {
          EXPECT_EQ(got, want) << i;
        }
      }
    }
  }
}

// A token of the prompt sees those behind it, and through two layers what they
// see.
TEST_F(WholePromptTest, EveryTokenOfAPromptSeesTheLast) {
  Write(Mixed());
  const auto engine = Load({});
  Script script = All(90, 0);
  const StreamRecord record = RunAlone(*engine, script);
  script.commands[0].append.back() ^= 1;
  const StreamRecord other = RunAlone(*engine, script);
  ASSERT_THAT(record.logits, SizeIs(90));
  ASSERT_THAT(other.logits, SizeIs(90));
  for (size_t i = 0; i < 90; ++i) {
    EXPECT_NE(record.logits[i].values, other.logits[i].values) << i;
  }
  // What a second command appends does not change the prompt, nor does it
  // matter in how many steps it is computed.
  script.commands.push_back(
      {TestRandom(6).Tokens(100, 256), 3, LogitsMode::kAll});
  const StreamRecord two = RunAlone(*engine, script);
  ASSERT_THAT(two.logits, SizeIs(90 + 100 + 2));
  for (size_t i = 0; i < 90; ++i) {
    EXPECT_EQ(two.logits[i].values, other.logits[i].values) << i;
  }
  EngineOptions options;
  options.max_chunk_tokens = 91;
  const StreamRecord cut = RunAlone(*Load(options), script);
  EXPECT_EQ(cut.tokens, two.tokens);
  ASSERT_THAT(cut.logits, SizeIs(two.logits.size()));
  for (size_t i = 0; i < two.logits.size(); ++i) {
    EXPECT_EQ(cut.logits[i].values, two.logits[i].values) << i;
  }
}

Script RandomScript(uint64_t seed) {
  TestRandom random(seed);
  Script script = Script::Generate(random.Tokens(random.Uniform(1, 96), 256),
                                   random.Uniform(1, 40), LogitsMode::kNext);
  if (random.Chance(0.4)) {
    script.commands.push_back({random.Tokens(random.Uniform(1, 60), 256),
                               random.Uniform(1, 20), LogitsMode::kNext});
  }
  script.options.sampling.seed = seed;
  script.options.sampling.temperature = random.Chance(0.5) ? 0.8f : 0.0f;
  // Those who come late are more important, so that memory changes hands.
  script.options.priority = static_cast<int32_t>(seed / 6);
  script.options.stopping.ignore_eos = true;
  return script;
}

// Whether preempted sequences are saved, and whether prompts are paced.
class WholePromptMemoryTest
    : public WholePromptTest,
      public testing::WithParamInterface<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(, WholePromptMemoryTest,
                         testing::Values(std::tuple(false, false),
                                         std::tuple(true, true)));

TEST_P(WholePromptMemoryTest, OthersDoNotChangeABit) {
  constexpr uint64_t kRequests = 18;
  const auto [saved, paced] = GetParam();
  Write(Mixed());
  EngineOptions options;
  options.max_num_seqs = 5;
  options.max_num_batched_tokens = 100;
  options.max_chunk_tokens = 96;
  options.max_model_len = 256;
  if (paced) options.max_decode_slowdown = 2;
  const auto engine =
      Load(options, /*kv_pages=*/6, kTestDevice, saved ? 1 << 20 : 0);
  ASSERT_NE(engine, nullptr);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    const Script script = RandomScript(seed);
    sinks.push_back(std::make_shared<RecordingSink>());
    const bool one = script.commands.size() == 1;
    const auto id = Submit(*engine, script, sinks.back(), one);
    ASSERT_TRUE(id.ok()) << id.status();
    if (!one) {
      engine->Extend(*id, script.commands[1]);
      engine->Close(*id);
    }
    if (seed % 6 == 5) sinks[seed - 5]->WaitTokens(1);
  }
  for (const auto& sink : sinks) sink->WaitEnd();
  EXPECT_TRUE(IsIdle(*engine));
  const EngineLoad load = engine->load();
  if (saved) {
    EXPECT_GT(load.saves_total, 0u);
    EXPECT_GT(load.restores_total, 0u);
  } else {
    EXPECT_GT(load.recomputes_total, 0u);
    EXPECT_EQ(load.saves_total, 0u);
  }

  const auto alone = Load({});
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    SCOPED_TRACE(seed);
    const StreamRecord record = sinks[seed]->Record();
    EXPECT_EQ(record.violation, "");
    const StreamRecord solo = RunAlone(*alone, RandomScript(seed));
    ASSERT_TRUE(solo.end && solo.end->ok());
    EXPECT_EQ(record.tokens, solo.tokens);
    ASSERT_EQ(record.logits.size(), solo.logits.size());
    for (size_t i = 0; i < solo.logits.size(); ++i) {
      EXPECT_EQ(record.logits[i].values, solo.logits[i].values) << i;
    }
  }
}

TEST_F(WholePromptTest, RefusesAPromptThatDoesNotFitAStep) {
  Write({Linear(false)});
  EngineOptions options;
  options.max_chunk_tokens = 70;
  const auto engine = Load(options);
  const auto run = [&](int64_t prompt, LogitsMode logits) {
    Script script = Script::Generate(TestRandom(5).Tokens(prompt, 256), 1);
    script.commands[0].logits = logits;
    return RunAlone(*engine, script).end.value();
  };
  EXPECT_TRUE(run(70, LogitsMode::kAll).ok());
  EXPECT_THAT(run(71, LogitsMode::kNone),
              FailsWith(kInvalid, "prompt_ids has 71", "as a whole", "70",
                        "--max-chunk-tokens"));
}

#ifdef RECURVE_TEST_ON_GPU
TEST_F(WholePromptTest, TheGpuIsNearTheCpu) {
  for (const std::vector<json>& layers :
       {std::vector<json>{Linear(false), Linear(false, "lrpe_cosine")},
        Mixed()}) {
    Write(layers);
    const StreamRecord want = RunAlone(*Load({}, 64, "cpu"), All(150, 0));
    const StreamRecord got = RunAlone(*Load({}), All(150, 0));
    ASSERT_THAT(want.logits, SizeIs(150));
    ASSERT_THAT(got.logits, SizeIs(150));
    std::vector<float> all_got, all_want;
    double worst = 0;
    for (size_t i = 0; i < 150; ++i) {
      const auto& a = got.logits[i].values;
      const auto& b = want.logits[i].values;
      worst = std::max(worst, RelativeError(a, b));
      all_got.insert(all_got.end(), a.begin(), a.end());
      all_want.insert(all_want.end(), b.begin(), b.end());
    }
    const double error = RelativeError(all_got, all_want);
    std::printf("%zu layers: error %.5f, worst row %.5f\n", layers.size(),
                error, worst);
    EXPECT_LE(error, 2e-2);
    EXPECT_LE(worst, 6e-2);
  }
}
#endif

}  // namespace
}  // namespace recurve
