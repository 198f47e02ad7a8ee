// Qwen3.5, OLMo Hybrid and MiniCPM-SALA: which files are read, and what is
// refused. What they compute is in golden_models_test.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/family_files.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class HybridFamiliesTest : public FamilyFiles {
 protected:
  // The part of config.json that describes the language model.
  nlohmann::json& Text() {
    return config.contains("text_config") ? config["text_config"] : config;
  }
  absl::Status ReadWithText(const std::string& key,
                            const nlohmann::json& value) {
    const nlohmann::json before = config;
    Text()[key] = value;
    const absl::Status status = Read();
    config = before;
    return status;
  }
};

TEST_F(HybridFamiliesTest, QwenIsReadAsPublished) {
  Use("qwen3_5-grouped");
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_EQ(family_, "qwen3_5");
  EXPECT_THAT(layers_, ElementsAre("gated delta", "gated delta", "gated delta",
                                   "attention"));
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("vision tower"),
                                    HasSubstr("multi-token prediction")));
  EXPECT_THAT(ignored_keys_, Contains("text_config.use_cache"));
  // The flat form, without what is not of the language model.
  Use("qwen3_5-tied");
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_EQ(family_, "qwen3_5");
  EXPECT_THAT(remarks_, IsEmpty());
}

TEST_F(HybridFamiliesTest, QwenWithoutLayerTypesHasEveryFourthFull) {
  Use("qwen3_5-tied");
  config.erase("layer_types");
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_EQ(layers_[3], "attention");
  EXPECT_THAT(ReadWith("full_attention_interval", 2),
              FailsWith(kInvalid, "layers.1.self_attn"));
}

TEST_F(HybridFamiliesTest, RefusesWhatChangesTheFunction) {
  for (const char* set : {"qwen3_5-grouped", "qwen3_5-tied", "olmo_hybrid-nope",
                          "minicpm_sala-restated"}) {
    SCOPED_TRACE(set);
    Use(set);
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, nlohmann::json>>{
             {"attention_bias", true},
             {"hidden_act", "gelu"},
             {"sliding_window", 4096},
             {"num_experts", 8},
             {"logit_scale", 0.5},
             {"quantization_config", {{"bits", 4}}},
             {"final_logit_softcapping", 30.0},
             {"clip_qkv", 8.0},
             {"qk_layernorm", true},
             {"v_head_dim", 8},
             {"mlp_only_layers", {1}},
             {"compression_config", {{"format", "float"}}},
             {"rms_norm_eps", nullptr},
             {"num_key_value_heads", 3},
             {"head_dim", 17}}) {
      EXPECT_THAT(ReadWithText(key, value), FailsWith(kInvalid, key)) << key;
    }
    // Harmless, or off.
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, nlohmann::json>>{
             {"sliding_window", nullptr},
             {"use_sliding_window", false},
             {"num_experts", 0},
             {"mlp_only_layers", nlohmann::json::array()},
             {"router_aux_loss_coef", 0.001},
             {"language_model_only", true},
             {"pretraining_tp", 1},
             {"transformers_version", "5.24.0"}}) {
      EXPECT_TRUE(ReadWithText(key, value).ok()) << ReadWithText(key, value);
    }
  }
}

TEST_F(HybridFamiliesTest, RefusesQuantizedWeights) {
  Use("qwen3_5-grouped");
  EXPECT_THAT(ReadWith("quantization_config", {{"quant_method", "fp8"}}),
              FailsWith(kInvalid, "quantization_config"));
}

TEST_F(HybridFamiliesTest, RefusesOtherPositions) {
  Use("qwen3_5-grouped");
  EXPECT_THAT(
      ReadWithText("rope_parameters",
                   {{"rope_type", "yarn"}, {"rope_theta", 1e7}}),
      FailsWith(kInvalid, "rope_parameters.rope_type", "'yarn'", "default"));
  EXPECT_THAT(ReadWithText("rope_parameters", {{"rope_type", "default"}}),
              FailsWith(kInvalid, "rope_theta"));
  EXPECT_THAT(ReadWithText("rope_parameters", {{"rope_theta", 1e7},
                                               {"partial_rotary_factor", 0.3}}),
              FailsWith(kInvalid, "partial_rotary_factor", "rotates 7"));
}

TEST_F(HybridFamiliesTest, RefusesOtherPositionsWhereverTheyAre) {
  const nlohmann::json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}};
  for (const char* set : {"qwen3_5-grouped", "qwen3_5-tied", "olmo_hybrid-nope",
                          "minicpm_sala-restated"}) {
    SCOPED_TRACE(set);
    Use(set);
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      SCOPED_TRACE(key);
      EXPECT_THAT(ReadWithText(key, yarn),
                  FailsWith(kInvalid, absl::StrCat(key, ".rope_type"), "yarn"));
      EXPECT_THAT(ReadWithText(key, {{"type", "linear"}, {"factor", 2.0}}),
                  FailsWith(kInvalid, absl::StrCat(key, ".type"), "linear"));
      EXPECT_THAT(ReadWithText(key, {{"theta", 5e5}}),
                  FailsWith(kInvalid, "theta", "rope_theta"));
      EXPECT_THAT(
          ReadWithText(key, {{"full_attention", {{"rope_theta", 5e5}}}}),
          FailsWith(kInvalid, "full_attention"));
      EXPECT_THAT(ReadWithText(key, {{"rope_theta", "1e4"}}),
                  FailsWith(kInvalid, absl::StrCat(key, ".rope_theta")));
    }
    Text()["rope_parameters"] = {{"rope_theta", 1e4},
                                 {"partial_rotary_factor", 1.0}};
    EXPECT_TRUE(Read().ok()) << Read();
    EXPECT_TRUE(ReadWithText("rope_scaling", Text()["rope_parameters"]).ok());
    EXPECT_THAT(ReadWithText("rope_scaling", {{"rope_theta", 2e4},
                                              {"partial_rotary_factor", 1.0}}),
                FailsWith(kInvalid, "rope_parameters", "rope_scaling",
                          "differ in rope_theta"));
  }
  for (const char* set : {"olmo_hybrid-nope", "minicpm_sala-restated"}) {
    Use(set);
    EXPECT_THAT(ReadWith("partial_rotary_factor", 0.5),
                FailsWith(kInvalid, "partial_rotary_factor is 0.5"));
  }
}

TEST_F(HybridFamiliesTest, WhatIsNextToTheTextConfigMustAgree) {
  Use("qwen3_5-grouped");
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{
           {"rope_scaling", {{"type", "yarn"}}},
           {"attention_bias", true},
           {"rms_norm_eps", 0.1}}) {
    EXPECT_THAT(ReadWith(key, value), FailsWith(kInvalid, key)) << key;
  }
  EXPECT_TRUE(ReadWith("rms_norm_eps", Text()["rms_norm_eps"]).ok());
  ASSERT_TRUE(ReadWith("hidden_size", 128).ok());
  EXPECT_THAT(ignored_keys_, Contains("hidden_size"));
  EXPECT_THAT(ignored_keys_, testing::Not(Contains("text_config")));
  EXPECT_THAT(ReadWithText("model_type", "qwen3_5_moe_text"),
              FailsWith(kInvalid, "text_config.model_type", "moe"));
}

TEST_F(HybridFamiliesTest, HeadsFollowFromOtherSizes) {
  Use("minicpm_sala-restated");
  config.erase("head_dim");
  for (const char* key :
       {"num_attention_heads", "lightning_nh", "lightning_nkv"})
    config[key] = 20;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "num_attention_heads is 20",
                                "heads of 3", "head_dim"));
}

TEST_F(HybridFamiliesTest, RefusesOtherLayersAndSizes) {
  Use("qwen3_5-tied");
  EXPECT_THAT(ReadWith("layer_types", {"linear_attention", "linear_attention",
                                       "sliding_attention", "full_attention"}),
              FailsWith(kInvalid, "layer_types[2]", "sliding_attention",
                        "full_attention, linear_attention"));
  EXPECT_THAT(ReadWith("layer_types", {"full_attention"}),
              FailsWith(kInvalid, "layer_types", "1 entries", "is 4"));
  EXPECT_THAT(ReadWith("linear_num_value_heads", 3),
              FailsWith(kInvalid, "linear_num_value_heads is 3", "multiple"));
  EXPECT_THAT(ReadWith("linear_conv_kernel_dim", 5),
              FailsWith(kInvalid, "linear_conv_kernel_dim is 5", "2 to 4"));
  EXPECT_TRUE(ReadWith("output_gate_type", "swish").ok());
  EXPECT_THAT(ReadWith("output_gate_type", "sigmoid"),
              FailsWith(kInvalid, "output_gate_type", "swish"));
  EXPECT_THAT(ReadWith("mamba_ssm_dtype", "bfloat16"),
              FailsWith(kInvalid, "mamba_ssm_dtype", "float32"));
  tensors.erase("model.layers.1.linear_attn.A_log");
  EXPECT_THAT(Read(), FailsWith(kInvalid, "layers.1.linear_attn.A_log"));
}

TEST_F(HybridFamiliesTest, RefusesTensorsThatItWouldNotCompute) {
  for (const char* set :
       {"qwen3_5-grouped", "olmo_hybrid-nope", "minicpm_sala-restated"}) {
    Use(set);
    tensors["model.layers.0.mlp.extra.weight"] = tensors["lm_head.weight"];
    EXPECT_THAT(Read(), FailsWith(kInvalid, "mlp.extra.weight")) << set;
  }
}

TEST_F(HybridFamiliesTest, OlmoRotatesUnlessThetaIsNull) {
  Use("olmo_hybrid-nope");
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_EQ(family_, "olmo_hybrid");
  const std::vector<std::string> layers = layers_;
  EXPECT_THAT(layers, ElementsAre("gated delta", "gated delta", "gated delta",
                                  "attention"));
  const auto describe = [&] {
    const auto checkpoint = Checkpoint::Open(folder_.path());
    return ReadModel(*checkpoint)->layers[3].mixer->Describe();
  };
  EXPECT_THAT(describe(), HasSubstr("no position"));
  for (const nlohmann::json& rope :
       {nlohmann::json(), nlohmann::json{{"rope_type", "default"}},
        nlohmann::json{{"rope_theta", 5e5}}}) {
    config["rope_parameters"] = rope;
    ASSERT_TRUE(Read().ok()) << Read();
    EXPECT_THAT(describe(), HasSubstr("rotated")) << rope;
  }
  config["rope_parameters"] = {{"rope_type", "default"}};
  config["rope_theta"] = nullptr;
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_THAT(describe(), HasSubstr("no position"));
  config.erase("rope_parameters");
  config["rope_theta"] = nullptr;
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_THAT(describe(), HasSubstr("no position"));
}

TEST_F(HybridFamiliesTest, SalaIsServedUpToItsDenseLength) {
  Use("minicpm_sala-restated");
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_EQ(family_, "minicpm_sala");
  EXPECT_THAT(layers_, ElementsAre("attention", "linear", "linear", "attention",
                                   "linear"));
  EXPECT_EQ(default_model_len_, 0);  // as long as the model is
  config["sparse_config"]["dense_len"] = 128;
  ASSERT_TRUE(Read().ok()) << Read();
  EXPECT_EQ(default_model_len_, 128);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("beyond 128 tokens")));
  EXPECT_THAT(ReadWith("lightning_nkv", 2),
              FailsWith(kInvalid, "lightning_nkv is 2", "which is 4"));
  EXPECT_THAT(ReadWith("lightning_head_dim", 32),
              FailsWith(kInvalid, "lightning_head_dim is 32", "which is 16"));
  EXPECT_THAT(ReadWith("qk_norm", false), FailsWith(kInvalid, "qk_norm"));
  EXPECT_THAT(ReadWith("lightning_scale", "1"),
              FailsWith(kInvalid, "lightning_scale"));
}

}  // namespace
}  // namespace recurve
