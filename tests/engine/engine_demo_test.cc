// The engine on the demo model: the published continuations, and the same
// tokens and logits however steps are cut and memory is fought for. On the GPU,
// the continuations are those of float32; the bits hold for bfloat16 too.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sampling/sampling.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using testing::SizeIs;

// RECURVE_DEMO_MODEL names another folder.
std::string DemoFolder() {
  const char* folder = std::getenv("RECURVE_DEMO_MODEL");
  return folder != nullptr ? folder : RECURVE_SOURCE_DIR "/deploy/models/demo";
}

class EngineDemoTest : public OnTestDevice<> {};

std::unique_ptr<Engine> LoadDemo(EngineOptions options, int64_t kv_pages,
                                 const char* dtype = "auto",
                                 int64_t swap_bytes = 0) {
  ModelOptions model;
  model.swap_bytes = swap_bytes;
  model.device = kTestDevice;
  model.dtype = dtype;
  model.path = DemoFolder();
  model.num_threads = 2;
  model.kv_pages = kv_pages;
  options.poison_released = true;
  auto loaded = LoadModel(model, &options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return nullptr;
  auto engine =
      Engine::Create(options, std::move(loaded->runner), nullptr, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<int32_t> Ids(const SafetensorsFile& file, const std::string& name) {
  const TensorView& view = file.tensors().at(name);
  EXPECT_EQ(view.dtype, DType::kInt32);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < view.num_elements(); ++i)
    ids.push_back(static_cast<int32_t>(view.Element(i)));
  return ids;
}

TEST_F(EngineDemoTest, ReproducesThePublishedContinuations) {
  const auto expected =
      SafetensorsFile::Open(DemoFolder() + "/expected.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto engine = LoadDemo({}, 64, "float32");
  ASSERT_NE(engine, nullptr);
  const std::vector<std::string> names = {"def", "class", "import", "recall"};
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const std::string& name : names) {
    Script script = Script::Generate(Ids(*expected, "prompt_" + name), 160,
                                     LogitsMode::kNext);
    script.options.stopping.ignore_eos = true;
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(Submit(*engine, script, sinks.back()).ok());
  }
  for (size_t i = 0; i < names.size(); ++i) {
    SCOPED_TRACE(names[i]);
    const StreamRecord record = sinks[i]->WaitEnd();
    ASSERT_TRUE(record.end && record.end->ok());
    EXPECT_EQ(record.tokens, Ids(*expected, "greedy_" + names[i]));
    const TensorView& rows = expected->tensors().at("logits_" + names[i]);
    ASSERT_THAT(record.logits, SizeIs(160));
    float worst = 0;
    float largest = 0;
    for (int64_t r = 0; r < 160; ++r) {
      for (int64_t v = 0; v < 258; ++v) {
        const float golden = rows.Element(r * 258 + v);
        largest = std::max(largest, std::abs(golden));
        // The golden rows are rounded to 11 bits.
        const float rounding = std::abs(golden) * 0x1p-11f;
        worst = std::max(
            worst, std::abs(record.logits[r].values[v] - golden) - rounding);
      }
    }
    // The GPU keeps factors in 16 bits.
    EXPECT_LE(worst, kTestOnGpu ? 5e-3f * largest : 2e-3f);
  }
  EXPECT_TRUE(IsIdle(*engine));
}

// The log-probabilities of the prompt are those of the rows.
void ExpectScoresOf(const StreamRecord& record,
                    const std::vector<int32_t>& prompt) {
  ASSERT_THAT(record.prompt_logprobs, SizeIs(prompt.size() - 1));
  SamplingScratch scratch;
  for (size_t i = 1; i < prompt.size(); ++i) {
    const StepEvent::PromptLogprob& got = record.prompt_logprobs[i - 1];
    const auto want =
        ScoreToken(record.logits[i - 1].values, prompt[i], 3, &scratch);
    ASSERT_TRUE(want.ok());
    EXPECT_EQ(got.token, prompt[i]);
    EXPECT_EQ(got.logprob, want->logprob) << i;
    EXPECT_EQ(got.top, want->top) << i;
  }
}

void ChunksDoNotChangeABit(const char* dtype,
                           const std::vector<int64_t>& chunks) {
  Script script =
      Script::Generate(TestRandom(1).Tokens(200, 256), 5, LogitsMode::kAll);
  script.commands[0].prompt_logprobs = 3;
  StreamRecord whole;
  for (const int64_t chunk : chunks) {
    EngineOptions options;
    options.max_chunk_tokens = chunk;
    const auto engine = LoadDemo(options, 64, dtype);
    ASSERT_NE(engine, nullptr);
    const StreamRecord record = RunAlone(*engine, script);
    ASSERT_THAT(record.logits, SizeIs(204));
    ExpectScoresOf(record, script.commands[0].append);
    if (chunk == 512) {
      whole = record;
      continue;
    }
    EXPECT_EQ(record.tokens, whole.tokens) << chunk;
    for (size_t i = 0; i < whole.logits.size(); ++i) {
      EXPECT_EQ(record.logits[i].values, whole.logits[i].values)
          << "position " << i << ", chunk " << chunk;
    }
  }
}

TEST_F(EngineDemoTest, ChunksDoNotChangeABit) {
  // On the GPU, bfloat16 weights make linear attention compute prompts by 64.
  ChunksDoNotChangeABit("bfloat16", kTestOnGpu
                                        ? std::vector<int64_t>{512, 130, 64}
                                        : std::vector<int64_t>{512, 64, 7, 1});
  if (kTestOnGpu) ChunksDoNotChangeABit("float32", {512, 64, 7, 1});
}

TEST_F(EngineDemoTest, MinTokensMasksWhatWouldEndIt) {
  const auto engine = LoadDemo({}, 64);
  ASSERT_NE(engine, nullptr);
  Script script = Script::Generate({256, 'd', 'e', 'f', ' '}, 60);
  script.options.sampling.logit_bias = {{' ', 1}, {'x', -1}};
  const StreamRecord all = RunAlone(*engine, script);
  script.options.stopping.stop_token_ids = {all.tokens[1], all.tokens[3], ' '};
  script.options.stopping.min_tokens = 20;
  script.commands[0].logits = LogitsMode::kNext;
  const StreamRecord record = RunAlone(*engine, script);
  ASSERT_GT(record.tokens.size(), 20u);
  EXPECT_NE(record.tokens, all.tokens);
  for (size_t i = 0; i < record.tokens.size(); ++i) {
    std::vector<float> row = record.logits[i].values;
    row[' '] += 1;
    row['x'] -= 1;
    if (i < 20) {
      for (const int32_t id : script.options.stopping.stop_token_ids)
        row[id] = -std::numeric_limits<float>::infinity();
      row[257] = -std::numeric_limits<float>::infinity();
    }
    EXPECT_EQ(record.tokens[i],
              std::max_element(row.begin(), row.end()) - row.begin())
        << i;
  }
}

Script RandomScript(uint64_t seed) {
  TestRandom random(seed);
  Script script = Script::Generate(random.Tokens(random.Uniform(1, 200), 256),
                                   random.Uniform(1, 40), LogitsMode::kNext);
  script.options.sampling.seed = seed;
  script.options.sampling.temperature = random.Chance(0.5) ? 0.8f : 0.0f;
  // Those who come late are more important, so that memory changes hands.
  script.options.priority = static_cast<int32_t>(seed / 6);
  return script;
}

// With `swap_bytes` of host memory to save preempted sequences in.
std::vector<StreamRecord> RunTogether(uint64_t requests, int64_t swap_bytes,
                                      EngineLoad* load) {
  EngineOptions options;
  options.max_num_seqs = 5;
  options.max_num_batched_tokens = 96;
  options.max_chunk_tokens = kTestOnGpu ? 70 : 50;
  options.max_model_len = 256;
  const auto engine = LoadDemo(options, /*kv_pages=*/7, "auto", swap_bytes);
  if (engine == nullptr) return {};
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t seed = 0; seed < requests; ++seed) {
    sinks.push_back(std::make_shared<RecordingSink>());
    EXPECT_TRUE(Submit(*engine, RandomScript(seed), sinks.back()).ok());
    if (seed % 6 == 5) sinks[seed - 5]->WaitTokens(1);
  }
  std::vector<StreamRecord> records;
  for (const auto& sink : sinks) records.push_back(sink->WaitEnd());
  EXPECT_TRUE(IsIdle(*engine));
  *load = engine->load();
  return records;
}

TEST_F(EngineDemoTest, OthersDoNotChangeABit) {
  constexpr uint64_t kRequests = 16;
  EngineLoad computed_again;
  EngineLoad saved;
  std::vector<StreamRecord> runs[] = {
      RunTogether(kRequests, 0, &computed_again),
      RunTogether(kRequests, 64 << 20, &saved)};
  EXPECT_GT(computed_again.recomputes_total, 0u);
  EXPECT_EQ(computed_again.saves_total, 0u);
  EXPECT_GT(saved.restores_total, 0u);
  EXPECT_EQ(saved.recomputes_total, 0u);

  const auto alone = LoadDemo({}, 64);
  ASSERT_NE(alone, nullptr);
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    const StreamRecord solo = RunAlone(*alone, RandomScript(seed));
    for (const auto& run : runs) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << (&run == runs ? "" : ", saved"));
      ASSERT_EQ(run.size(), kRequests);
      const StreamRecord& record = run[seed];
      EXPECT_EQ(record.violation, "");
      ASSERT_TRUE(record.end && record.end->ok());
      EXPECT_EQ(record.tokens, solo.tokens);
      ASSERT_EQ(record.LogitsPositions(), solo.LogitsPositions());
      for (size_t i = 0; i < solo.logits.size(); ++i)
        EXPECT_EQ(record.logits[i].values, solo.logits[i].values);
    }
  }
}

}  // namespace
}  // namespace recurve
