// Checkpoints of every family that their authors' own code has run
// (tests/golden/models; RECURVE_GOLDEN_MODELS names another folder): the same
// tokens, and logits within a tolerance of the largest, however the prompt is
// cut. On the GPU too, in float32; there TPA factors are rounded to 16 bits.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/golden_sets.h"
#include "tests/testing/test_device.h"

namespace recurve {
namespace {

using testing::SizeIs;

// For logits, relative to the largest. The first families' pages have 16 bits
// on the GPU, and their authors' code rounds tables.
double Tolerance(const std::string& set) {
  for (const char* family : {"qwen", "olmo", "minicpm"}) {
    if (set.rfind(family, 0) == 0) return 1e-4;
  }
  return kTestOnGpu ? 1e-2 : 1e-3;
}

class GoldenModelsTest
    : public OnTestDevice<testing::TestWithParam<std::string>> {
 protected:
  void SetUp() override {
    OnTestDevice::SetUp();
    if (IsSkipped()) return;
    path_ = GoldenFolder() + "/" + GetParam();
    auto file = SafetensorsFile::Open(path_ + "/expected.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    expected_.emplace(*std::move(file));
  }

  std::unique_ptr<Engine> Load(int64_t chunk, const char* dtype = "auto") {
    ModelOptions model;
    model.path = path_;
    model.dtype = dtype;
    model.num_threads = 2;
    model.device = kTestDevice;
    model.swap_bytes = 0;
    EngineOptions options;
    options.max_chunk_tokens = chunk;
    options.max_num_batched_tokens = std::max<int64_t>(chunk, 128);
    options.max_num_seqs = 4;
    options.poison_released = true;
    auto loaded = LoadModel(model, &options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return nullptr;
    auto engine =
        Engine::Create(options, std::move(loaded->runner), nullptr, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  std::vector<int32_t> Ids(const std::string& name) const {
    const TensorView& view = expected_->tensors().at(name);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < view.num_elements(); ++i)
      ids.push_back(static_cast<int32_t>(view.Element(i)));
    return ids;
  }

  std::vector<std::string> Prompts() const {
    std::vector<std::string> names;
    for (const auto& [name, view] : expected_->tensors()) {
      if (name.rfind("prompt_", 0) == 0) names.push_back(name.substr(7));
    }
    return names;
  }

  // For rows from `first` on, relative to the largest logit of all.
  double RelativeError(const StreamRecord& record, int64_t first,
                       const TensorView& rows) {
    const int64_t vocab = rows.shape[1];
    double largest = 0;
    double worst = 0;
    for (int64_t r = 0; r < rows.shape[0]; ++r) {
      EXPECT_THAT(record.logits[first + r].values, SizeIs(vocab));
      for (int64_t v = 0; v < vocab; ++v) {
        const double golden = rows.Element(r * vocab + v);
        largest = std::max(largest, std::abs(golden));
        worst = std::max(
            worst,
            std::abs(static_cast<double>(record.logits[first + r].values[v]) -
                     golden));
      }
    }
    return worst / largest;
  }

  std::string path_;
  std::optional<SafetensorsFile> expected_;
};

TEST_P(GoldenModelsTest, TokensAndLogits) {
  ASSERT_FALSE(Prompts().empty());
  for (const int64_t chunk : {4096, 7, 1}) {
    const auto engine = Load(chunk);
    ASSERT_NE(engine, nullptr);
    for (const std::string& name : Prompts()) {
      SCOPED_TRACE(testing::Message()
                   << "prompt " << name << " chunk " << chunk);
      const std::vector<int32_t> greedy = Ids("greedy_" + name);
      Script script = Script::Generate(Ids("prompt_" + name),
                                       static_cast<int64_t>(greedy.size()),
                                       LogitsMode::kAll);
      script.options.stopping.ignore_eos = true;
      const StreamRecord record = RunAlone(*engine, script);
      ASSERT_TRUE(record.end && record.end->ok()) << *record.end;
      EXPECT_EQ(record.tokens, greedy);
      // Rows behind every token of the prompt, then of each that follows.
      const int64_t last = script.commands[0].append.size() - 1;
      const TensorView& rows = expected_->tensors().at("logits_" + name);
      ASSERT_THAT(record.logits, SizeIs(last + rows.shape[0]));
      EXPECT_LE(RelativeError(record, last, rows), Tolerance(GetParam()));
      const TensorView& prompt =
          expected_->tensors().at("last_prompt_logits_" + name);
      EXPECT_LE(RelativeError(record, last + 1 - prompt.shape[0], prompt),
                Tolerance(GetParam()));
    }
    EXPECT_TRUE(IsIdle(*engine));
  }
}

// |got - want| / |want| over all rows of a set, want in float32, of the
// authors' code in bfloat16 (transformers 5.24, PyTorch 2.13, on a CPU).
// Rounding the weights alone gives 0.051, 0.045 and 0.061: small models with
// delta rules magnify it. The last set has no code of its authors': the figure
// is ours.
const std::map<std::string, double>& BFloat16Errors() {
  static const auto* const errors =
      new std::map<std::string, double>{{"qwen3_5-grouped", 0.0536},
                                        {"qwen3_5-tied", 0.0550},
                                        {"olmo_hybrid-nope", 0.0823},
                                        {"minicpm_sala-restated", 0.004}};
  return *errors;
}

class BFloat16GoldenModelsTest : public GoldenModelsTest {};

TEST_P(BFloat16GoldenModelsTest, IsAboutAsNearAsTheAuthors) {
  for (const int64_t chunk : {4096, 64}) {
    SCOPED_TRACE(chunk);
    const auto engine = Load(chunk, "bfloat16");
    ASSERT_NE(engine, nullptr);
    double error = 0, norm = 0;
    for (const std::string& name : Prompts()) {
      std::vector<int32_t> tokens = Ids("prompt_" + name);
      const size_t last = tokens.size() - 1;
      const std::vector<int32_t> greedy = Ids("greedy_" + name);
      tokens.insert(tokens.end(), greedy.begin(), greedy.end());
      const StreamRecord got =
          RunAlone(*engine, Script::Generate(tokens, 0, LogitsMode::kAll));
      ASSERT_TRUE(got.end && got.end->ok()) << *got.end;
      const TensorView& rows = expected_->tensors().at("logits_" + name);
      const int64_t vocab = rows.shape[1];
      ASSERT_GE(got.logits.size(), last + rows.shape[0]);
      for (int64_t i = 0; i < rows.num_elements(); ++i) {
        const double want = rows.Element(i);
        const double off =
            got.logits[last + i / vocab].values[i % vocab] - want;
        error += off * off;
        norm += want * want;
      }
    }
    const double relative = std::sqrt(error / norm);
    std::printf("%-24s %.4f\n", GetParam().c_str(), relative);
    // Orders of sums decide by more than that: the CPU's error and the GPU's
    // differ by up to a third.
    EXPECT_LE(relative, 1.1 * BFloat16Errors().at(GetParam()));
  }
}

std::vector<std::string> BFloat16Sets() {
  const std::vector<std::string> all = GoldenSets();
  std::vector<std::string> sets;
  for (const auto& [set, error] : BFloat16Errors()) {
    // Another folder may lack some.
    if (std::getenv("RECURVE_GOLDEN_MODELS") == nullptr ||
        std::find(all.begin(), all.end(), set) != all.end()) {
      sets.push_back(set);
    }
  }
  return sets;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BFloat16GoldenModelsTest);
INSTANTIATE_TEST_SUITE_P(Sets, BFloat16GoldenModelsTest,
                         testing::ValuesIn(BFloat16Sets()),
                         [](const auto& info) {
                           return GoldenTestName(info.param);
                         });

INSTANTIATE_TEST_SUITE_P(Sets, GoldenModelsTest,
                         testing::ValuesIn(GoldenSets()), [](const auto& info) {
                           return GoldenTestName(info.param);
                         });

}  // namespace
}  // namespace recurve
