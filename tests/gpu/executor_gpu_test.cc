// The engine on the GPU with 16-bit weights: near the CPU's logits, and with
// many streams at once each gets what it gets alone.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/loading/model_loader.h"
#include "engine/program/step.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/product_chain_cuda.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/faulty_runner.h"
#include "tests/testing/golden_sets.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"
#include "tools/recurve_model/presets.h"
#include "tools/recurve_model/random_checkpoint.h"

namespace recurve {
namespace {

class ExecutorGpuTest : public OnTestDevice<> {};

std::string DemoFolder() {
  const char* folder = std::getenv("RECURVE_DEMO_MODEL");
  return folder != nullptr ? folder : RECURVE_SOURCE_DIR "/deploy/models/demo";
}

std::unique_ptr<Engine> Load(const std::string& path, const char* device,
                             const char* dtype, EngineOptions options,
                             int64_t kv_pages = 0,
                             const char* kv_dtype = "auto",
                             int64_t swap_bytes = 0,
                             FaultyRunner::BeforeRun before = nullptr,
                             int64_t prefix_cache_bytes = 0) {
  ModelOptions model;
  model.prefix_cache_bytes = prefix_cache_bytes;
  model.swap_bytes = swap_bytes;
  model.path = path;
  model.device = device;
  model.dtype = dtype;
  model.num_threads = 4;
  model.kv_pages = kv_pages;
  model.kv_dtype = kv_dtype;
  options.poison_released = true;
  auto loaded = LoadModel(model, &options);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return nullptr;
  EXPECT_EQ(loaded->runner->info().device, device);
  if (before != nullptr) {
    auto faulty = std::make_unique<FaultyRunner>(std::move(loaded->runner));
    faulty->SetBeforeRun(std::move(before));
    loaded->runner = std::move(faulty);
  }
  auto engine =
      Engine::Create(options, std::move(loaded->runner), nullptr, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// |got - want| / |want| over all logits.
double RelativeError(const StreamRecord& got, const StreamRecord& want) {
  double error = 0;
  double norm = 0;
  EXPECT_EQ(got.logits.size(), want.logits.size());
  for (size_t i = 0; i < want.logits.size(); ++i) {
    const auto& a = got.logits[i].values;
    const auto& b = want.logits[i].values;
    for (size_t v = 0; v < b.size(); ++v) {
      error += (static_cast<double>(a[v]) - b[v]) * (a[v] - b[v]);
      norm += static_cast<double>(b[v]) * b[v];
    }
  }
  return std::sqrt(error / norm);
}

std::vector<int32_t> Ids(const TensorView& view) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < view.num_elements(); ++i)
    ids.push_back(static_cast<int32_t>(view.Element(i)));
  return ids;
}

// The published continuations of the demo model, as prompts; and whether the
// model goes on with the same tokens.
TEST_F(ExecutorGpuTest, SixteenBitLogitsAreNearTheCpus) {
  const auto expected =
      SafetensorsFile::Open(DemoFolder() + "/expected.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  EngineOptions options;
  options.max_num_seqs = 4;
  const auto gpu = Load(DemoFolder(), "cuda", "bfloat16", options);
  const auto cpu = Load(DemoFolder(), "cpu", "bfloat16", options);
  ASSERT_TRUE(gpu != nullptr && cpu != nullptr);
  for (const char* name : {"def", "class", "import", "recall"}) {
    SCOPED_TRACE(name);
    std::vector<int32_t> tokens =
        Ids(expected->tensors().at(std::string("prompt_") + name));
    const std::vector<int32_t> greedy =
        Ids(expected->tensors().at(std::string("greedy_") + name));
    Script generate = Script::Generate(tokens, 160);
    generate.options.stopping.ignore_eos = true;
    const StreamRecord generated = RunAlone(*gpu, generate);
    ASSERT_TRUE(generated.end && generated.end->ok());
    size_t same = 0;
    while (same < greedy.size() && generated.tokens[same] == greedy[same])
      ++same;
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    const Script script = Script::Generate(tokens, 0, LogitsMode::kAll);
    const double error =
        RelativeError(RunAlone(*gpu, script), RunAlone(*cpu, script));
    std::printf("%-8s error %.5f; %d of 160 tokens as published\n", name, error,
                static_cast<int>(same));
    EXPECT_LE(error, 2e-2);
    EXPECT_GT(same, 8u);
  }
}

// What a client asks, and when it leaves.
struct Request {
  Script script;
  int64_t cancel_after = -1;  // tokens
};

// `ahead`: nothing but preemption keeps steps from running ahead; no logits are
// asked for.
Request MakeRequest(uint64_t seed, bool ahead) {
  TestRandom random(seed);
  Request request;
  Script& script = request.script;
  script = Script::Generate(
      // A fifth of the prompts are not short (kShortPromptTokens).
      random.Tokens(random.Uniform(1, 480), 256), random.Uniform(1, 60),
      random.Chance(0.3) && !ahead ? LogitsMode::kNext : LogitsMode::kNone);
  // Two of three begin with a part of the same text.
  if (seed % 3 != 0) {
    std::vector<int32_t>& prompt = script.commands[0].append;
    const std::vector<int32_t> common = TestRandom(1000).Tokens(480, 256);
    std::copy_n(common.begin(),
                std::min<size_t>(prompt.size(), 60 + 37 * seed % 400),
                prompt.begin());
  }
  if (random.Chance(0.3)) {  // a second turn
    script.commands.push_back({random.Tokens(random.Uniform(1, 40), 256),
                               random.Uniform(1, 20), LogitsMode::kNone});
  }
  SamplingParams& sampling = script.options.sampling;
  sampling.seed = seed;
  sampling.temperature = random.Chance(0.5) ? 0.8f : 0.0f;
  sampling.top_p = random.Chance(0.5) ? 0.9f : 1.0f;
  sampling.num_logprobs = random.Chance(0.2) ? 3 : -1;
  script.options.stopping.ignore_eos = true;
  script.options.priority = static_cast<int32_t>(seed / 16);
  if (random.Chance(0.15)) request.cancel_after = random.Uniform(0, 20);
  if (random.Chance(0.3)) sampling.top_k = 40;
  if (random.Chance(0.2)) sampling.min_p = 0.01f;
  if (random.Chance(0.3)) sampling.repetition_penalty = 1.2f;
  if (random.Chance(0.2)) sampling.frequency_penalty = 0.3f;
  if (random.Chance(0.2)) sampling.logit_bias = {{101, 3.0f}, {32, -2.0f}};
  return request;
}

void CompareWithEachAlone(
    const char* dtype, bool ahead,
    const std::vector<std::shared_ptr<RecordingSink>>& sinks) {
  const auto alone = Load(DemoFolder(), "cuda", dtype, {}, 64);
  ASSERT_NE(alone, nullptr);
  uint64_t finished = 0;
  for (uint64_t seed = 0; seed < sinks.size(); ++seed) {
    SCOPED_TRACE(testing::Message() << dtype << ", seed " << seed);
    const StreamRecord record = sinks[seed]->Record();
    EXPECT_EQ(record.violation, "");
    ASSERT_TRUE(record.end);
    Script script = MakeRequest(seed, ahead).script;
    // Then each step of it waits for the last.
    if (ahead) {
      for (Command& command : script.commands)
        command.logits = LogitsMode::kNext;
    }
    StreamRecord solo = RunAlone(*alone, script);
    if (ahead) solo.logits.clear();
    ASSERT_TRUE(solo.end && solo.end->ok());
    if (record.end->ok()) {
      ++finished;
      EXPECT_EQ(record.tokens, solo.tokens);
      EXPECT_EQ(record.logprobs, solo.logprobs);
      EXPECT_EQ(record.LogitsPositions(), solo.LogitsPositions());
    } else {
      EXPECT_EQ(record.end->code(), absl::StatusCode::kCancelled)
          << *record.end;
      ASSERT_LE(record.tokens.size(), solo.tokens.size());
      EXPECT_TRUE(std::equal(record.tokens.begin(), record.tokens.end(),
                             solo.tokens.begin()));
    }
    ASSERT_LE(record.logits.size(), solo.logits.size());
    for (size_t i = 0; i < record.logits.size(); ++i)
      ASSERT_EQ(record.logits[i].values, solo.logits[i].values) << i;
  }
  EXPECT_GT(finished, sinks.size() / 2);
}

// `swap_bytes` of host memory save preempted sequences: none, some, or all.
EngineLoad ManyStreams(const char* dtype, int64_t swap_bytes, bool ahead,
                       int64_t prefix_cache_bytes = 0) {
  constexpr uint64_t kStreams = 64;
  EngineOptions options;
  options.max_num_seqs = 11;
  options.max_num_batched_tokens = 150;
  options.max_chunk_tokens = 70;  // cut to 64 where linear attention asks
  options.max_model_len = 608;
  const auto engine =
      Load(DemoFolder(), "cuda", dtype, options,
           /*kv_pages=*/24, "auto", swap_bytes, nullptr, prefix_cache_bytes);
  EXPECT_NE(engine, nullptr);
  if (engine == nullptr) return {};
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<uint64_t> ids;
  for (uint64_t seed = 0; seed < kStreams; ++seed) {
    const Request request = MakeRequest(seed, ahead);
    sinks.push_back(std::make_shared<RecordingSink>());
    const bool one = request.script.commands.size() == 1;
    const auto id = Submit(*engine, request.script, sinks.back(), one);
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) return {};
    ids.push_back(*id);
    if (!one) {
      engine->Extend(*id, request.script.commands[1]);
      engine->Close(*id);
    }
    if (seed % 16 == 15) {
      for (uint64_t i = seed - 15; i <= seed; ++i) {
        const int64_t after = MakeRequest(i, ahead).cancel_after;
        if (after < 0) continue;
        sinks[i]->WaitTokens(static_cast<size_t>(after));
        engine->Cancel(ids[i], absl::CancelledError("the client left"));
      }
    }
  }
  for (const auto& sink : sinks) sink->WaitEnd();
  EXPECT_TRUE(engine->health().ok()) << engine->health();
  EXPECT_TRUE(IsIdle(*engine));
  const EngineLoad load = engine->load();
  EXPECT_GT(load.preemptions_total, 0u);
  CompareWithEachAlone(dtype, ahead, sinks);
  return load;
}

TEST_F(ExecutorGpuTest, SixtyFourStreamsGetWhatEachGetsAlone) {
  const EngineLoad load = ManyStreams("bfloat16", 256 << 20, /*ahead=*/false);
  EXPECT_GT(load.restores_total, 0u);
  EXPECT_EQ(load.recomputes_total, 0u);
}
TEST_F(ExecutorGpuTest, SixtyFourStreamsRunAheadAndGetWhatEachGetsStepByStep) {
  const EngineLoad load = ManyStreams("bfloat16", 256 << 20, /*ahead=*/true);
  EXPECT_GT(load.restores_total, 0u);
  EXPECT_EQ(load.recomputes_total, 0u);
}
TEST_F(ExecutorGpuTest, SixtyFourStreamsGetWhatEachGetsAloneComputedAgain) {
  const EngineLoad load = ManyStreams("bfloat16", 0, /*ahead=*/true);
  EXPECT_EQ(load.saves_total, 0u);
  EXPECT_GT(load.recomputes_total, 0u);
}
TEST_F(ExecutorGpuTest, SixtyFourStreamsGetWhatEachGetsAloneWithSomeSaved) {
  const EngineLoad load = ManyStreams("bfloat16", 2 << 20, /*ahead=*/true);
  EXPECT_GT(load.restores_total, 0u);
  EXPECT_GT(load.recomputes_total, 0u);
}
TEST_F(ExecutorGpuTest, SixtyFourStreamsGetWhatEachGetsAloneInFloat32) {
  const EngineLoad load = ManyStreams("float32", 256 << 20, /*ahead=*/true);
  EXPECT_GT(load.restores_total, 0u);
}

// Prompts continue from snapshots of earlier ones, also where these have too
// little room.
TEST_F(ExecutorGpuTest, SixtyFourStreamsGetWhatEachGetsColdFromSnapshots) {
  for (const char* dtype : {"bfloat16", "float32"}) {
    for (const bool ahead : {true, false}) {
      for (const int64_t bytes : {256 << 20, 4 << 20}) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " ahead " << ahead << " bytes " << bytes);
        const EngineLoad load = ManyStreams(dtype, 4 << 20, ahead, bytes);
        EXPECT_GT(load.snapshots_total, 0u);
        EXPECT_GT(load.cached_prompt_tokens_total, 0u);
      }
    }
  }
}

// The state of one sequence breaks down; the other goes on with the same bits.
TEST_F(ExecutorGpuTest, ANonFiniteRowEndsItsOwnStreamOnly) {
  EngineOptions options;
  options.max_num_seqs = 4;
  std::atomic<int32_t> victim = 0;  // slot of the sequence with 5 rows
  std::atomic<int> steps = 0;
  const auto engine = Load(
      DemoFolder(), "cuda", "bfloat16", options, 64, "auto", 0,
      [&](const StepBatch& batch, CacheStorage& storage) {
        for (int64_t b = 0; b < batch.num_sequences(); ++b) {
          const int32_t rows = batch.query_start[b + 1] - batch.query_start[b];
          if (rows == 5) victim = batch.slots[b];
        }
        // Later, so that the decode graph is what meets it.
        if (victim == 0 || ++steps < 8) return absl::OkStatus();
        return storage.PoisonSlot(victim.exchange(0));
      });
  ASSERT_NE(engine, nullptr);
  Script healthy = Script::Generate(TestRandom(5).Tokens(50, 256), 100);
  healthy.options.stopping.ignore_eos = true;
  const std::vector<int32_t> solo = RunAlone(*engine, healthy).tokens;
  const auto good = std::make_shared<RecordingSink>();
  ASSERT_TRUE(Submit(*engine, healthy, good).ok());
  for (const float temperature : {0.0f, 0.8f}) {
    steps = 0;
    Script script = Script::Generate({256, 1, 2, 3, 4}, 100);
    script.options.stopping.ignore_eos = true;
    script.options.sampling.temperature = temperature;
    const auto bad = std::make_shared<RecordingSink>();
    ASSERT_TRUE(Submit(*engine, script, bad).ok());
    EXPECT_THAT(std::string(bad->WaitEnd().end->message()),
                testing::HasSubstr("non-finite"));
    EXPECT_EQ(bad->Record().end->code(), absl::StatusCode::kInternal);
    EXPECT_GE(bad->Record().tokens.size(), 3u);
  }
  EXPECT_EQ(good->WaitEnd().tokens, solo);
  EXPECT_TRUE(engine->health().ok());
  EXPECT_EQ(RunAlone(*engine, healthy).tokens, solo);
  EXPECT_TRUE(IsIdle(*engine));
}

class WideModelGpuTest : public ExecutorGpuTest,
                         public testing::WithParamInterface<const char*> {};

// For up to four rows, a layer of these sizes has its products in one launch;
// the second engine of a process launches them one by one, and so do more rows.
// Attention heads are split differently for few and for many tokens in all
// rows.
TEST_P(WideModelGpuTest, ARowIsTheSameAloneAndBesideOthers) {
  const auto plan = PlanPreset(GetParam(), {2, 16384});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string folder = testing::TempDir() + "/recurve-wide-model";
  std::filesystem::remove_all(folder);
  RandomCheckpointOptions checkpoint;
  checkpoint.num_threads = 4;
  const auto written =
      WriteRandomCheckpoint(*plan, folder, checkpoint, [](int64_t, int64_t) {});
  ASSERT_TRUE(written.ok()) << written.status();
  EngineOptions options;
  options.max_num_seqs = 5;
  // An engine runs steps while it is loaded, and has them captured then.
  const int64_t before = ProductChainLaunches();
  EngineOptions one = options;
  one.max_num_seqs = 1;
  ASSERT_NE(Load(folder, "cuda", "bfloat16", one, 400), nullptr);
  const int64_t of_one_row = ProductChainLaunches() - before;
  const auto first = Load(folder, "cuda", "bfloat16", options, 400);
  const int64_t launches = ProductChainLaunches();
  if (DecodeMatmulFuses()) {
    EXPECT_GT(of_one_row, 0);
    EXPECT_GT(launches - before, 2 * of_one_row);  // of more rows, too
  }
  const auto second = Load(folder, "cuda", "bfloat16", options, 64);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  // The last prompt is not a short one: some of its products are others.
  const auto script = [](uint64_t seed) {
    Script generate =
        Script::Generate(TestRandom(seed).Tokens(
                             seed < 4 ? 20 : kShortPromptTokens + 100, 50000),
                         24, LogitsMode::kNext);
    generate.options.stopping.ignore_eos = true;
    return generate;
  };
  const auto same = [](const StreamRecord& got, const StreamRecord& want) {
    ASSERT_TRUE(got.end && got.end->ok());
    EXPECT_EQ(got.tokens, want.tokens);
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t i = 0; i < got.logits.size(); ++i)
      ASSERT_EQ(got.logits[i].values, want.logits[i].values) << i;
  };
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<StreamRecord> alone;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    alone.push_back(RunAlone(*first, script(seed)));
    ASSERT_EQ(alone.back().tokens.size(), 24u);
    same(RunAlone(*second, script(seed)), alone.back());
  }
  // The second has none, and the first replays its own.
  EXPECT_EQ(ProductChainLaunches(), launches);
  for (const uint64_t rows : {4, 3, 2}) {
    sinks.clear();
    for (uint64_t seed = 1; seed <= rows; ++seed) {
      sinks.push_back(std::make_shared<RecordingSink>());
      ASSERT_TRUE(Submit(*first, script(seed), sinks.back()).ok());
    }
    for (size_t i = 0; i < sinks.size(); ++i)
      same(sinks[i]->WaitEnd(), alone[i]);
  }

  // Together with 67 chunks of a long sequence, which are many for the blocks
  // of any GPU.
  Script longer = Script::Generate(TestRandom(5).Tokens(15000, 50000), 600);
  longer.options.stopping.ignore_eos = true;
  const auto beside = std::make_shared<RecordingSink>();
  ASSERT_TRUE(Submit(*first, longer, beside).ok());
  beside->WaitTokens(3);
  sinks.clear();
  for (const uint64_t seed : {1, 2, 3, 4}) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(Submit(*first, script(seed), sinks.back()).ok());
  }
  std::vector<StreamRecord> records;
  for (const auto& sink : sinks) records.push_back(sink->WaitEnd());
  EXPECT_FALSE(beside->Record().end);  // it was there all the time
  for (size_t i = 0; i < sinks.size(); ++i) same(records[i], alone[i]);
  EXPECT_EQ(beside->WaitEnd().tokens, RunAlone(*first, longer).tokens);
}

INSTANTIATE_TEST_SUITE_P(Presets, WideModelGpuTest,
                         testing::Values("t6-medium", "t6-large", "t6-xl"));

// The golden sets with weights rounded to bfloat16, which the CPU rounds alike.
// These are small models of random weights, some of which make much of a
// rounding of their factors, and of keys, queries and weights in prompts; so
// the bound is wide for factors in bfloat16, and for gated delta rules, which
// make unit vectors of queries and keys that may be short.
TEST_F(ExecutorGpuTest, GoldenModelsInBFloat16AreNearTheCpus) {
  for (const std::string& set : GoldenSets()) {
    SCOPED_TRACE(set);
    const std::string path = GoldenFolder() + "/" + set;
    EngineOptions options;
    options.max_num_seqs = 2;
    const auto cpu = Load(path, "cpu", "bfloat16", options);
    ASSERT_NE(cpu, nullptr);
    const int64_t vocab = cpu->limits().vocab_size;
    const Script script =
        Script::Generate(TestRandom(3).Tokens(90, vocab), 0, LogitsMode::kAll);
    const StreamRecord want = RunAlone(*cpu, script);
    for (const char* kv_dtype : {"bfloat16", "float16"}) {
      const auto gpu = Load(path, "cuda", "bfloat16", options, 0, kv_dtype);
      ASSERT_NE(gpu, nullptr);
      const StreamRecord got = RunAlone(*gpu, script);
      ASSERT_TRUE(got.end && got.end->ok()) << *got.end;
      const double error = RelativeError(got, want);
      std::printf("%-50s factors in %-8s %.5f\n", set.c_str(), kv_dtype, error);
      const bool delta = set.rfind("qwen", 0) == 0 || set.rfind("olmo", 0) == 0;
      EXPECT_LE(error, kv_dtype[0] == 'f' && !delta ? 3e-2 : 5.5e-2);
    }
  }
}

TEST_F(ExecutorGpuTest, RefusesWhatDoesNotFit) {
  ModelOptions model;
  model.path = DemoFolder();
  model.device = "cuda";
  EngineOptions options;
  model.kv_pages = int64_t{1} << 30;
  options.max_model_len = 100;
  const auto loaded = LoadModel(model, &options);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(loaded.status().message()),
              testing::HasSubstr("out of GPU memory"));
  model.kv_pages = 0;
  model.kv_dtype = "float32";
  options = {};
  EXPECT_THAT(
      std::string(LoadModel(model, &options).status().message()),
      testing::HasSubstr("--kv-dtype is float32; the GPU keeps factors"));
}

}  // namespace
}  // namespace recurve
