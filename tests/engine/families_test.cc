// Families other than our own: how they are told apart, which options they
// have, and what is refused. What they compute is in golden_models_test.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/loading/model_loader.h"
#include "engine/models/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/family_files.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using nlohmann::json;
using FamiliesTest = FamilyFiles;

TEST_F(FamiliesTest, AreRecognised) {
  Use("t6");
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(family_, "t6");
  Use("xmixers-tnl");
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(family_, "xmixers");
}

TEST_F(FamiliesTest, UnknownOnesListWhatIsSupported) {
  Use("xmixers-tnl");
  config["model_type"] = "mamba2";
  EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json", "\"mamba2\"",
                                "recurve", "t6", "xmixers", "llama_"));
  config.erase("model_type");
  EXPECT_THAT(Read(), FailsWith(kInvalid, "model_type is missing"));
  EXPECT_THAT(Read({"gpt", ""}),
              FailsWith(kInvalid, "--model-family is \"gpt\"", "t6"));
}

TEST_F(FamiliesTest, TheFlagWins) {
  Use("t6");
  config["model_type"] = "recurve";  // would be read as our own
  EXPECT_FALSE(Read().ok());
  EXPECT_TRUE(Read({"t6", ""}).ok());
  EXPECT_THAT(Read({"xmixers", ""}), FailsWith(kInvalid, "model_type"));
}

TEST_F(FamiliesTest, OnlyT6HasVariants) {
  Use("xmixers-tnl");
  EXPECT_THAT(Read({"auto", "T6"}),
              FailsWith(kInvalid, "--model-variant", "xmixers"));
}

TEST_F(FamiliesTest, T6Variants) {
  Use("t6");
  EXPECT_TRUE(Read({"auto", "T6_ropek"}).ok());
  EXPECT_EQ(variant_, "T6_ropek");
  // The flag wins, and what it contradicts is said.
  EXPECT_THAT(remarks_,
              testing::ElementsAre(testing::AllOf(
                  testing::HasSubstr("'T6_ropek' in place of 'T6'"),
                  testing::HasSubstr("config.json has as t6_variant"))));
  EXPECT_TRUE(Read({"auto", "T6"}).ok());
  EXPECT_THAT(remarks_, testing::IsEmpty());
  EXPECT_EQ(variant_, "T6");  // one checkpoint, two models
  EXPECT_TRUE(Read({"auto", "T6_partialrope_decay"}).ok());
  EXPECT_THAT(Read({"auto", "T6_infer"}),
              FailsWith(kInvalid, "--model-variant is \"T6_infer\"",
                        "T6_kvonly_partialrope"));
  EXPECT_THAT(ReadWith("t6_variant", "T7"),
              FailsWith(kInvalid, "config.json: t6_variant is \"T7\"",
                        "supported: T6,"));
  EXPECT_THAT(ReadWith("t6_variant", "T6_kvonly"),
              FailsWith(kInvalid, "T6_kvonly", "whole", "model.safetensors"));
  EXPECT_TRUE(Read().ok());
  EXPECT_EQ(variant_, "T6");
  EXPECT_THAT(remarks_, testing::IsEmpty());
  config.erase("t6_variant");
  EXPECT_TRUE(Read().ok());
  EXPECT_EQ(variant_, "T6");
  EXPECT_THAT(remarks_, testing::ElementsAre(testing::HasSubstr("assumed")));
  // Such a key belongs to a variant that names do not tell.
  EXPECT_THAT(ReadWith("rope_partial_factor", 0.5),
              FailsWith(kInvalid, "rope_partial_factor", "t6_variant"));
}

TEST_F(FamiliesTest, T6RefusesWhatDoesNotFit) {
  Use("t6");
  EXPECT_THAT(ReadWith("head_dim", 33), FailsWith(kInvalid, "head_dim is 33"));
  EXPECT_THAT(ReadWith("rank", 0), FailsWith(kInvalid, "rank is 0"));
  EXPECT_THAT(ReadWith("n_head", 5),
              FailsWith(kInvalid, "W_A_", "model.safetensors"));
  EXPECT_THAT(ReadWith("using_groupnorm", true),
              FailsWith(kInvalid, "attn.subln.weight"));
  Use("t6-groupnorm");
  EXPECT_TRUE(ReadWith("using_groupnorm", nullptr).ok());  // tensors tell
  EXPECT_THAT(ReadWith("using_groupnorm", false),
              FailsWith(kInvalid, "attn.subln.weight"));
  Use("t6-partialrope-decay");
  EXPECT_THAT(ReadWith("rope_partial_factor", 1.5),
              FailsWith(kInvalid, "rope_partial_factor is 1.5"));
  EXPECT_THAT(ReadWith("rope_decay_base", 2),
              FailsWith(kInvalid, "rope_decay_base is 2"));
}

TEST_F(FamiliesTest, T6HeadUnderBothNames) {
  Use("t6");
  tensors["lm_head.weight"] = tensors.at("transformer.wte.weight");
  EXPECT_TRUE(Read().ok());
  tensors["lm_head.weight"].bytes[5] ^= 1;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "lm_head.weight",
                                "transformer.wte.weight", "; T6 ties the two"));
}

TEST_F(FamiliesTest, ATiedHeadMayBeThereTwice) {
  Use("xmixers-linear-nogate-tied");
  EXPECT_TRUE(Read().ok());
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  EXPECT_TRUE(Read().ok());
  tensors["lm_head.weight"].bytes[5] ^= 1;
  EXPECT_THAT(Read(),
              FailsWith(kInvalid, "lm_head.weight", "embed_tokens",
                        "; tie_word_embeddings in ", "/config.json is true"));
}

TEST_F(FamiliesTest, TensorsMustBeAllAndNoMore) {
  for (const char* set : {"t6", "xmixers-hybrid", "xmixers-linear-tpe"}) {
    SCOPED_TRACE(set);
    Use(set);
    tensors["model.extra.weight"] = tensors.begin()->second;
    EXPECT_THAT(Read(), FailsWith(kInvalid, "model.extra.weight"));
    Use(set);
    for (const auto& [name, tensor] : std::map(tensors)) {
      if (name.find("alpha_proj") != std::string::npos ||
          name.find("beta_proj") != std::string::npos)
        continue;  // kept by the authors, but unused
      tensors.erase(name);
      EXPECT_THAT(Read(), FailsWith(kInvalid, name, "model.safetensors"));
      tensors[name] = tensor;
    }
  }
}

// Neither in what a server needs, nor in what a type can hold.
TEST_F(FamiliesTest, TensorsThatAreIgnoredDoNotCount) {
  Use("xmixers-linear-dense-padvocab");
  const auto load = [&] {
    EXPECT_TRUE(Read().ok());
    ModelOptions options;
    options.path = folder_.path();
    options.device = "cpu";
    options.dtype = "bfloat16";
    options.num_threads = 1;
    EngineOptions engine;
    engine.max_num_seqs = 2;
    const auto loaded = LoadModel(options, &engine);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->capacity.weight_bytes : 0;
  };
  const std::string ignored = "model.layers.0.token_mixer.alpha_proj.weight";
  const std::string largest("\xff\xff\x7f\x7f", 4);  // no bfloat16
  tensors.at(ignored).bytes.replace(0, 4, largest);
  const int64_t with = load();
  tensors.erase(ignored);
  EXPECT_EQ(with, load());
}

TEST_F(FamiliesTest, NaNIsRefused) {
  Use("xmixers-tpa");
  StoredTensor& tensor =
      tensors.at("model.layers.1.token_mixer.k_head_proj.weight");
  tensor.bytes.replace(8, 4, std::string("\x00\x00\xc0\x7f", 4));
  EXPECT_THAT(Read(), FailsWith(kInvalid, "layers.1.token_mixer.k_head_proj",
                                "model.safetensors"));
}

// Different mathematics, or invalid mathematics.
TEST_F(FamiliesTest, XmixersRefusesOtherMathematics) {
  struct Case {
    const char* set;
    const char* key;
    json value;
    const char* says;
  };
  const Case cases[] = {
      {"xmixers-tpa", "token_mixer_type", "mla", "'mla'"},
      {"xmixers-tpa", "bias", true, "only false"},
      {"xmixers-tpa", "use_postnorm", true, "only false"},
      {"xmixers-tpa", "norm_type", "dynamictanh", "rmsnorm, srmsnorm"},
      {"xmixers-tpa", "lrpe_type", 7, "1 to 6"},
      {"xmixers-tpa", "cp_activation", "softmax_2", "softmax_1"},
      {"xmixers-tpa", "head_dim", 0, "at least 1"},
      {"xmixers-tpa", "channel_mixer_type", "ffn", "glu"},
      {"xmixers-tpa", "channel_mixer_activation", "gelu", "sigmoid"},
      {"xmixers-tpa", "norm_eps_on", "max", "sum, mean"},
      {"xmixers-linear-cosine", "lrpe_type", 7, "1 to 6"},
      {"xmixers-linear-cosine", "causal", false, "only true"},
      {"xmixers-linear-cosine", "use_ape", true, "only false"},
      {"xmixers-linear-cosine", "kv_heads", 2, "-1 or 4"},
      {"xmixers-linear-cosine", "gate_pos", "both", "pre, post"},
      {"xmixers-linear-cosine", "gate_act", "gelu", "sigmoid"},
      {"xmixers-linear-cosine", "linear_activation", "softmax", "softmax_1"},
      {"xmixers-linear-cosine", "token_mixer_norm_type", "layernorm",
       "grouprmsnorm"},
      {"xmixers-linear-cosine", "num_heads", 5, "does not divide"},
      {"xmixers-tnl", "use_initial_state", true, "only false"},
      {"xmixers-tnl", "num_heads", 1, "num_heads is 1"},
      {"xmixers-hybrid", "token_mixer_type_list", {"tpa", "hgru"}, "[1]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.set) + " " + c.key);
    Use(c.set);
    EXPECT_THAT(ReadWith(c.key, c.value),
                FailsWith(kInvalid, "config.json", c.key, c.says));
  }
}

}  // namespace
}  // namespace recurve
