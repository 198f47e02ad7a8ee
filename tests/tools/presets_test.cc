#include "tools/recurve_model/presets.h"

#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::map<std::string, std::vector<int64_t>> Shapes(const CheckpointPlan& plan) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const PlannedTensor& tensor : plan.tensors) {
    EXPECT_TRUE(shapes.emplace(tensor.name, tensor.shape).second)
        << tensor.name << " is planned twice";
  }
  return shapes;
}

TEST(PresetsTest, AreThese) {
  std::vector<std::string> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  EXPECT_THAT(names, ElementsAre("t6-medium", "t6-large", "t6-xl", "hybrid-1b",
                                 "linear-1b", "qwen3.5-0.8b", "qwen3.5-4b",
                                 "qwen3.5-9b", "qwen3.5-27b", "olmo-hybrid-7b",
                                 "minicpm-sala"));
}

// The sizes that the authors of T6 published, by hand.
TEST(PresetsTest, T6XlIsTheAuthorsModel) {
  const auto plan = PlanPreset("t6-xl", {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->config["n_layer"], 48);
  EXPECT_EQ(plan->config["n_embd"], 1600);
  EXPECT_EQ(plan->config["n_head"], 78);
  EXPECT_EQ(plan->config["head_dim"], 64);
  EXPECT_EQ(plan->config["q_rank"], 6);
  EXPECT_EQ(plan->config["rank"], 2);
  EXPECT_EQ(plan->config["t6_variant"], "T6");
  const auto shapes = Shapes(*plan);
  EXPECT_EQ(shapes.size(), 1 + 48 * 10u);
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"attn.c_qkv.W_A_q.weight", {468, 1600}},
      {"attn.c_qkv.W_B_q.weight", {384, 1600}},
      {"attn.c_qkv.W_A_k.weight", {156, 1600}},
      {"attn.c_qkv.W_B_k.weight", {128, 1600}},
      {"attn.c_qkv.W_A_v.weight", {156, 1600}},
      {"attn.c_qkv.W_B_v.weight", {128, 1600}},
      {"attn.c_proj.weight", {1600, 4992}},
      {"mlp.c_fc1.weight", {4266, 1600}},
      {"mlp.c_fc2.weight", {4266, 1600}},
      {"mlp.c_proj.weight", {1600, 4266}},
  };
  for (const auto& [name, shape] : expected)
    EXPECT_EQ(shapes.at("transformer.h.47." + name), shape) << name;
  EXPECT_THAT(shapes.at("transformer.wte.weight"), ElementsAre(50304, 1600));
  EXPECT_EQ(plan->parameters(), 1'555'814'400);
}

TEST(PresetsTest, SizesAreWhatTheNamesSay) {
  const std::map<std::string, std::pair<int64_t, int64_t>> millions = {
      {"t6-medium", {340, 370}},       {"t6-large", {760, 790}},
      {"t6-xl", {1500, 1600}},         {"hybrid-1b", {950, 1100}},
      {"linear-1b", {950, 1100}},      {"qwen3.5-0.8b", {700, 800}},
      {"qwen3.5-4b", {4100, 4300}},    {"qwen3.5-9b", {8900, 9100}},
      {"qwen3.5-27b", {26500, 27500}}, {"olmo-hybrid-7b", {7000, 7600}},
      {"minicpm-sala", {9300, 9600}}};
  for (const Preset& preset : Presets()) {
    const auto plan = PlanPreset(preset.name, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto [low, high] = millions.at(preset.name);
    EXPECT_GE(plan->parameters(), low * 1'000'000) << preset.name;
    EXPECT_LE(plan->parameters(), high * 1'000'000) << preset.name;
  }
}

TEST(PresetsTest, TheMixersAreWhatTheNamesSay) {
  const auto mixers = [](const char* name) {
    std::map<std::string, int> count;
    const auto plan = PlanPreset(name, {});
    for (const auto& layer : plan->config["layers"]) {
      ++count[layer["mixer"].get<std::string>()];
      EXPECT_EQ(layer["head_dim"], 128);
    }
    return count;
  };
  EXPECT_THAT(mixers("hybrid-1b"),
              ElementsAre(std::pair("linear", 12), std::pair("tpa", 6)));
  EXPECT_THAT(mixers("linear-1b"), ElementsAre(std::pair("linear", 18)));
}

TEST(PresetsTest, TakesOtherDepthsAndLengths) {
  for (const Preset& preset : Presets()) {
    const auto plan =
        PlanPreset(preset.name, {.layers = 3, .max_positions = 4096});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::string text = plan->config.dump();
    EXPECT_THAT(text,
                HasSubstr(preset.name[0] == 't' ? "\"n_layer\":3"
                                                : "\"num_hidden_layers\":3"));
    EXPECT_THAT(text, HasSubstr("4096"));
  }
}

TEST(PresetsTest, RefusesWithTheChoices) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PlanPreset("t6", {}).status(),
              FailsWith(kInvalid, "'t6'", "t6-medium", "linear-1b"));
  for (const int64_t layers : {0, 1025}) {
    EXPECT_THAT(PlanPreset("t6-xl", {.layers = layers}).status(),
                FailsWith(kInvalid, "--layers", "1 to 1024"));
  }
  EXPECT_THAT(PlanPreset("t6-xl", {.max_positions = 0}).status(),
              FailsWith(kInvalid, "--max-positions is 0"));
}

}  // namespace
}  // namespace recurve
