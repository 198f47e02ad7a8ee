// The bits of every golden set and of the demo model: a digest of the tokens
// and logits of prompts of several lengths, each alone and 64 at a time, is the
// one that tests/golden/digests.txt has for this kind of device. After a
// deliberate change of the order of sums, raise kArithmeticVersion, remove the
// device's lines from the file and have the test append the new ones:
//
//   RECURVE_DIGESTS_OUT=tests/golden/digests.txt engine_digests_test
//
// Sums depend on the width of vectors, so that there is a digest for each of
// Highway's targets, and for each compute capability of a GPU; of others there
// is none, and the test skips itself.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/golden_sets.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"
#ifdef RECURVE_TEST_ON_GPU
#include <cuda_runtime_api.h>
#endif

namespace recurve {
namespace {

// 64-bit FNV-1a.
class Digest {
 public:
  void Add(uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash_ = (hash_ ^ ((word >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  void Add(const StreamRecord& record) {
    for (const int32_t token : record.tokens) Add(static_cast<uint32_t>(token));
    for (const auto& row : record.logits) {
      for (const float value : row.values) Add(std::bit_cast<uint32_t>(value));
    }
  }
  std::string text() const { return absl::StrFormat("%016x", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

std::string Platform() {
#ifdef RECURVE_TEST_ON_GPU
  cudaDeviceProp device;
  EXPECT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  return absl::StrCat("cuda-sm_", device.major, device.minor);
#else
  const int64_t targets = hwy::SupportedTargets();
  return absl::StrCat("cpu-", hwy::TargetName(targets & -targets));
#endif
}

std::string DigestsFile() {
  return RECURVE_SOURCE_DIR "/tests/golden/digests.txt";
}

// By platform, model and type of weights.
std::map<std::string, std::string> ReadDigests() {
  std::map<std::string, std::string> digests;
  std::ifstream file(DigestsFile());
  std::string platform, model, type, digest;
  while (file >> platform >> model >> type >> digest) {
    digests[absl::StrCat(platform, " ", model, " ", type)] = digest;
  }
  return digests;
}

std::unique_ptr<Engine> Load(const std::string& path, const std::string& type) {
  ModelOptions model;
  model.path = path;
  model.num_threads = 2;
  model.device = kTestDevice;
  model.dtype = type;
  model.kv_pages = 2048;
  EngineOptions options;
  options.max_num_seqs = 64;
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

class DigestsTest : public OnTestDevice<testing::TestWithParam<GoldenCase>> {};

TEST_P(DigestsTest, TokensAndLogitsHaveTheSameBits) {
  const auto& [model, type] = GetParam();
  const std::string key = absl::StrCat(Platform(), " ", model, " ", type);
  const char* const out = std::getenv("RECURVE_DIGESTS_OUT");
  const auto known = ReadDigests();
  const auto expected = known.find(key);
  if (out == nullptr && expected == known.end()) {
    GTEST_SKIP() << "skipped: no digests of " << Platform()
                 << " in tests/golden/digests.txt";
  }
  const auto engine = Load(GetParam().path(), type);
  ASSERT_NE(engine, nullptr);
  const int64_t vocab = engine->model().vocab_size;
  const int64_t longest = engine->model().max_position_embeddings - 20;
  TestRandom random(7);
  Digest digest;
  std::vector<Script> scripts;
  // One token, a few, a short prompt, and one that is none.
  for (const int64_t length : {1, 5, 33, 70, 150, 400}) {
    const int64_t tokens = std::min(length, longest);
    scripts.push_back(
        Script::Generate(random.Tokens(tokens, vocab), 12, LogitsMode::kAll));
    scripts.back().options.stopping.ignore_eos = true;
    const StreamRecord record = RunAlone(*engine, scripts.back());
    ASSERT_TRUE(record.end && record.end->ok()) << *record.end;
    digest.Add(record);
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 64; ++i) {
    const int64_t tokens = std::min(random.Uniform(1, 96), longest);
    Script script =
        Script::Generate(random.Tokens(tokens, vocab), 16, LogitsMode::kNext);
    script.options.stopping.ignore_eos = true;
    if (i % 2 == 1) {
      script.options.sampling.temperature = 0.8f;
      script.options.sampling.seed = i;
    }
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(Submit(*engine, script, sinks.back()).ok());
  }
  for (const auto& sink : sinks) {
    const StreamRecord record = sink->WaitEnd();
    ASSERT_TRUE(record.end && record.end->ok()) << *record.end;
    digest.Add(record);
  }
  if (out != nullptr) {
    std::ofstream(out, std::ios::app) << key << " " << digest.text() << "\n";
    return;
  }
  EXPECT_EQ(digest.text(), expected->second) << key;
}

INSTANTIATE_TEST_SUITE_P(Models, DigestsTest, testing::ValuesIn(GoldenCases()),
                         [](const auto& info) {
                           return GoldenTestName(info.param.model) + "_" +
                                  info.param.type;
                         });

}  // namespace
}  // namespace recurve
