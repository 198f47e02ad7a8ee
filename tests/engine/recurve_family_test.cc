// The native family: what it reads, what it refuses, and that what it reads
// runs.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_loader.h"
#include "engine/models/linear/linear_layer.h"
#include "engine/models/registry.h"
#include "engine/models/tpa/tpa_layer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/status_codes.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::SizeIs;

const TpaConfig& Tpa(const ModelDefinition& model, size_t layer) {
  return dynamic_cast<const TpaLayer&>(*model.layers[layer].mixer)
      .definition()
      .config;
}
const LinearConfig& Linear(const ModelDefinition& model, size_t layer) {
  return dynamic_cast<const LinearLayer&>(*model.layers[layer].mixer)
      .definition()
      .config;
}

constexpr char kMixer1[] = "model.layers.1.token_mixer.";

class RecurveFamilyTest : public testing::Test {
 protected:
  json& config() { return tiny_.config; }
  json& tpa() { return tiny_.config["layers"][0]; }
  json& linear() { return tiny_.config["layers"][1]; }
  TinyCheckpoint::Tensor& tensor(const std::string& name) {
    return tiny_.tensors.at(name);
  }
  std::string path() const { return folder_.path() + "/model"; }

  // The status of reading the checkpoint as it is now.
  absl::Status Read(int shards = 1) {
    tiny_.Write(path(), shards);
    const auto checkpoint = Checkpoint::Open(path());
    if (!checkpoint.ok()) return checkpoint.status();
    return ReadModel(*checkpoint).status();
  }

  // All rows of a prompt and ten tokens, with this many tokens of it a step.
  std::vector<std::vector<float>> Rows(int64_t chunk, int shards = 1) {
    tiny_.Write(path(), shards);
    EngineOptions engine_options;
    engine_options.max_chunk_tokens = chunk;
    engine_options.poison_released = true;
    ModelOptions model_options;
    model_options.path = path();
    model_options.num_threads = 1;
    model_options.device = "cpu";
    auto loaded = LoadModel(model_options, &engine_options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return {};
    auto engine = Engine::Create(engine_options, std::move(loaded->runner),
                                 loaded->tokenizer.get(), nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    Script script =
        Script::Generate(TestRandom(3).Tokens(80, 260), 10, LogitsMode::kAll);
    script.options.stopping.ignore_eos = true;
    const StreamRecord record = RunAlone(**engine, script);
    EXPECT_TRUE(record.end->ok()) << *record.end;
    std::vector<std::vector<float>> rows;
    for (const StepEvent::LogitsRow& row : record.logits)
      rows.push_back(row.values);
    EXPECT_THAT(rows, SizeIs(89));
    return rows;
  }

  // The model runs, and however a prompt is cut it is the same model.
  void ExpectRuns() {
    const auto whole = Rows(512);
    ASSERT_THAT(whole, SizeIs(89));
    EXPECT_NE(whole[0], whole[1]);
    EXPECT_EQ(Rows(1), whole);
    EXPECT_EQ(Rows(33), whole);
  }

  TempFolder folder_;
  TinyCheckpoint tiny_ = TinyCheckpoint::Hybrid();
};

// --- What it reads ---

TEST_F(RecurveFamilyTest, ReadsEveryKey) {
  tiny_.Write(path());
  const auto checkpoint = Checkpoint::Open(path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto model = ReadModel(*checkpoint);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->family, "recurve");
  EXPECT_EQ(model->vocab_size, 260);
  EXPECT_EQ(model->max_position_embeddings, 256);
  EXPECT_EQ(model->tokenizer, "bytes");
  EXPECT_EQ(model->bos_token_id, 256);
  EXPECT_THAT(model->eos_token_ids, testing::ElementsAre(257));
  ASSERT_THAT(model->layers, SizeIs(2));
  const TpaConfig& tpa = Tpa(*model, 0);
  EXPECT_EQ(tpa.shape.q_rank, 3);
  EXPECT_EQ(tpa.shape.kv_rank, 2);
  EXPECT_EQ(tpa.shape.value_dim, 8);
  EXPECT_EQ(tpa.position.type, LrpeType::kRotate);
  EXPECT_THAT(tpa.position.theta, SizeIs(4));
  const LinearConfig& linear = Linear(*model, 1);
  EXPECT_EQ(linear.head_dim, 6);
  EXPECT_EQ(linear.value_dim, 8);
  EXPECT_EQ(linear.k_activation, Activation::kSilu);
  EXPECT_EQ(linear.v_activation, Activation::kNone);
  EXPECT_EQ(linear.output_gate, Activation::kSigmoid);
  EXPECT_FALSE(linear.gate_after_norm);
  EXPECT_THAT(linear.log_decay, testing::ElementsAre(-0.25, -0.01));
  uint64_t parameters = 0;
  for (const auto& [name, tensor] : tiny_.tensors)
    parameters += tensor.values.size();
  EXPECT_EQ(model->parameters, parameters);
}

TEST_F(RecurveFamilyTest, TheHybridRuns) { ExpectRuns(); }

TEST_F(RecurveFamilyTest, EveryOptionOfATpaLayerRuns) {
  tpa()["q_rank"] = 0;
  tpa()["factor_activation"] = "sigmoid";
  tpa()["head_norm"] = true;
  tpa()["value_dim"] = 12;
  tiny_.FillTensors();
  ExpectRuns();
}

TEST_F(RecurveFamilyTest, EveryNormOfALinearLayerRuns) {
  linear().erase("output_gate");
  std::vector<std::vector<float>> rms;
  for (const char* norm : {"rms", "group_rms", "none"}) {
    SCOPED_TRACE(norm);
    linear()["norm"] = norm;
    tiny_.FillTensors();
    ExpectRuns();
    if (rms.empty()) {
      rms = Rows(512);
    } else {
      EXPECT_NE(Rows(512), rms);
    }
  }
  linear()["output_gate"] = "silu";
  tiny_.FillTensors();
  EXPECT_THAT(Read(), FailsWith(kInvalid, "layers[1].norm", "output_gate"));
}

TEST_F(RecurveFamilyTest, ALinearLayerMayLookAtThePromptAsAWhole) {
  EXPECT_TRUE(Read().ok());
  linear().erase("log_decay");
  for (bool causal : {false, true}) {
    linear()["causal"] = causal;
    tiny_.Write(path());
    const auto checkpoint = Checkpoint::Open(path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto model = ReadModel(*checkpoint);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(Linear(*model, 1).causal, causal);
  }
}

TEST_F(RecurveFamilyTest, AnglesMayBeGivenOneByOne) {
  const auto by_base = Rows(512);
  tpa()["position"].erase("base");
  tpa()["position"]["theta"] = LrpeTheta(LrpeType::kRotate, 8, 100.0);
  EXPECT_EQ(Rows(512), by_base);
  tpa()["position"]["theta"] = {0, 0, 0, 0};
  const auto without = Rows(512);
  EXPECT_NE(without, by_base);
  tpa()["position"] = {{"type", "none"}};
  EXPECT_EQ(Rows(512), without);
  tpa()["position"] = {{"type", "lrpe_rotate"}, {"theta", {0.5, 0.1}}};
  EXPECT_THAT(Read(), FailsWith(kInvalid, "layers[0].position.theta", "4"));
  tpa()["position"]["theta"] = {1, 1, 1, 1};
  tpa()["position"]["base"] = 100;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "position.theta", "base"));
}

TEST_F(RecurveFamilyTest, ATiedHeadIsTheEmbedding) {
  tensor("lm_head.weight") = tensor("model.embed_tokens.weight");
  const auto untied = Rows(512);
  tiny_.tensors.erase("lm_head.weight");
  config()["tie_word_embeddings"] = true;
  EXPECT_EQ(Rows(512), untied);
}

TEST_F(RecurveFamilyTest, FloatTypesAreOneModel) {
  const auto rows = Rows(512);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    tiny_.SetDType(dtype);
    EXPECT_EQ(Rows(512), rows) << Name(dtype);
  }
  // Mixed, as in checkpoints that keep their norms in float32.
  tensor("model.final_norm.weight").dtype = DType::kFloat32;
  tensor(std::string(kMixer1) + "q_proj.weight").dtype = DType::kFloat16;
  EXPECT_EQ(Rows(512), rows);
}

TEST_F(RecurveFamilyTest, ShardsAreOneModel) {
  EXPECT_EQ(Rows(512, /*shards=*/3), Rows(512));
}

TEST_F(RecurveFamilyTest, NoGate) {
  linear().erase("output_gate");
  tiny_.FillTensors();
  ExpectRuns();
}

TEST_F(RecurveFamilyTest, GatePositions) {
  const auto pre = Rows(512);
  linear()["gate_position"] = "pre";
  EXPECT_EQ(Rows(512), pre);
  linear()["gate_position"] = "post";
  EXPECT_NE(Rows(512), pre);
  ExpectRuns();
}

TEST_F(RecurveFamilyTest, ValuesOfAnotherWidth) {
  tpa()["value_dim"] = 5;
  linear()["value_dim"] = 3;
  tiny_.FillTensors();
  ExpectRuns();
}

TEST_F(RecurveFamilyTest, EveryActivation) {
  for (const char* name :
       {"none", "silu", "relu", "sigmoid", "1+elu", "softmax"}) {
    SCOPED_TRACE(name);
    linear()["q_activation"] = name;
    linear()["k_activation"] = name;
    linear()["v_activation"] = name;
    if (std::string(name) != "softmax") {
      linear()["output_gate"] = name;
      config()["hidden_act"] = name;
    }
    ExpectRuns();
  }
}

TEST_F(RecurveFamilyTest, EveryPosition) {
  for (const char* name : {"none", "lrpe_rotate", "lrpe_cosine"}) {
    SCOPED_TRACE(name);
    linear()["position"] = {{"type", name}};
    if (std::string(name) != "lrpe_cosine")
      tpa()["position"] = {{"type", name}};
    ExpectRuns();
  }
  linear().erase("position");
  tpa().erase("position");
  ExpectRuns();
}

TEST_F(RecurveFamilyTest, ModelsOfOneMixer) {
  const json layers = config()["layers"];
  for (const json& layer : layers) {
    config()["layers"] = {layer, layer, layer};
    config()["num_hidden_layers"] = 3;
    tiny_.FillTensors();
    ExpectRuns();
  }
}

TEST_F(RecurveFamilyTest, GenerationConfigKnowsTheEosTokens) {
  tiny_.Write(path());
  folder_.Write("model/generation_config.json",
                R"({"eos_token_id": [257, 10]})");
  const auto checkpoint = Checkpoint::Open(path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto model = ReadModel(*checkpoint);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->eos_token_ids, testing::ElementsAre(257, 10));
}

// --- What it refuses: tensors ---

TEST_F(RecurveFamilyTest, RefusesAnyMissingTensor) {
  const auto all = tiny_.tensors;
  for (const auto& [name, tensor] : all) {
    tiny_.tensors = all;
    tiny_.tensors.erase(name);
    EXPECT_THAT(Read(),
                FailsWith(kInvalid, "model.safetensors", name, "is missing"));
  }
  EXPECT_THAT(Read(/*shards=*/2),
              FailsWith(kInvalid, "index.json", "is missing"));
}

TEST_F(RecurveFamilyTest, RefusesAnyTensorOfAnotherShape) {
  const auto all = tiny_.tensors;
  for (const auto& [name, tensor] : all) {
    tiny_.tensors = all;
    tiny_.tensors[name].shape.push_back(1);
    EXPECT_THAT(Read(), FailsWith(kInvalid, "model.safetensors", name, ", 1]",
                                  "expected"));
  }
}

TEST_F(RecurveFamilyTest, RefusesSwappedDimensions) {
  std::swap(tensor("model.layers.0.channel_mixer.w3.weight").shape[0],
            tensor("model.layers.0.channel_mixer.w3.weight").shape[1]);
  EXPECT_THAT(Read(), FailsWith(kInvalid, "w3.weight", "[24, 16]", "[16, 24]"));
}

TEST_F(RecurveFamilyTest, RefusesAnExtraTensor) {
  tiny_.tensors["model.layers.2.token_norm.weight"] =
      tensor("model.layers.1.token_norm.weight");
  EXPECT_THAT(Read(), FailsWith(kInvalid, "model.safetensors",
                                "model.layers.2.token_norm.weight"));
  // A separate head with a tied embedding would be an inconsistent model.
  tiny_ = TinyCheckpoint::Hybrid();
  config()["tie_word_embeddings"] = true;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "lm_head.weight"));
}

TEST_F(RecurveFamilyTest, RefusesNumbersThatAreNotFinite) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (float bad : {std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (const char* name :
           {"model.embed_tokens.weight",
            "model.layers.1.token_mixer.norm.weight", "lm_head.weight"}) {
        tiny_ = TinyCheckpoint::Hybrid();
        tiny_.SetDType(dtype);
        tensor(name).values.back() = bad;
        EXPECT_THAT(Read(), FailsWith(kInvalid, "model.safetensors", name,
                                      "expected finite"));
      }
    }
  }
}

// --- What it refuses: config ---

TEST_F(RecurveFamilyTest, RefusesUnknownKeys) {
  config()["sliding_window"] = 128;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json",
                                "unknown key 'sliding_window'"));
  tiny_ = TinyCheckpoint::Hybrid();
  tpa()["qrank"] = 4;
  EXPECT_THAT(Read(),
              FailsWith(kInvalid, "config.json", "layers[0]", "'qrank'"));
  tiny_ = TinyCheckpoint::Hybrid();
  linear()["kv_rank"] = 4;  // of the other mixer
  EXPECT_THAT(Read(), FailsWith(kInvalid, "layers[1]", "'kv_rank'"));
  tiny_ = TinyCheckpoint::Hybrid();
  linear()["position"]["angle"] = 4;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "layers[1]", "'angle'"));
}

TEST_F(RecurveFamilyTest, ANullKeyIsAbsentWhateverItsName) {
  config()["sliding_window"] = nullptr;
  tpa()["norm"] = nullptr;  // of the other mixer
  linear()["position"]["angle"] = nullptr;
  EXPECT_TRUE(Read().ok()) << Read();
}

TEST_F(RecurveFamilyTest, RefusesMissingKeys) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "max_position_embeddings", "layers"}) {
    tiny_ = TinyCheckpoint::Hybrid();
    config().erase(key);
    EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json", key, "is missing"));
  }
  for (const char* key :
       {"mixer", "num_heads", "head_dim", "q_rank", "kv_rank"}) {
    tiny_ = TinyCheckpoint::Hybrid();
    tpa().erase(key);
    EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json", "layers[0]", key,
                                  "is missing"));
  }
}

TEST_F(RecurveFamilyTest, RefusesLayersThatDisagree) {
  config()["num_hidden_layers"] = 3;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json", "layers has 2 entries",
                                "num_hidden_layers is 3"));
  config()["num_hidden_layers"] = 0;
  EXPECT_THAT(Read(), FailsWith(kInvalid, "num_hidden_layers", "0"));
}

// A change to the config and what its message must hold.
struct BadValue {
  const char* pointer;  // JSON pointer
  json value;
  std::vector<std::string> message;
};

TEST_F(RecurveFamilyTest, RefusesValuesOutOfRange) {
  const std::vector<BadValue> cases = {
      {"/layers/0/mixer", "mamba", {"layers[0].mixer", "mamba", "tpa, linear"}},
      {"/layers/0/head_dim", 7, {"layers[0].head_dim is 7", "even"}},
      {"/layers/0/head_dim", 0, {"layers[0].head_dim", "1 to 1024"}},
      {"/layers/0/num_heads", 2.5, {"layers[0].num_heads", "2.5"}},
      {"/layers/0/kv_rank", 65, {"layers[0].kv_rank", "1 to 64"}},
      {"/layers/0/position/type", "lrpe_cosine", {"layers[0]", "lrpe_cosine"}},
      {"/layers/0/position/base", 0.5, {"layers[0]", "base", "0.5"}},
      {"/layers/0/position",
       {{"type", "none"}, {"base", -5}},
       {"layers[0].position.base is given together with type none"}},
      {"/layers/1/position",
       {{"type", "none"}, {"theta", 3}},
       {"layers[1].position.theta is given together with type none"}},
      {"/layers/1/log_decay", {-0.1, 0.001}, {"layers[1].log_decay", "0.001"}},
      {"/layers/1/log_decay", {-0.1}, {"layers[1].log_decay", "list of 2"}},
      {"/layers/1/causal", false, {"layers[1].log_decay", "-0.25", "causal"}},
      {"/layers/1/causal", 0, {"layers[1].causal"}},
      {"/layers/1/k_activation", "tanh", {"layers[1].k_activation", "tanh"}},
      {"/layers/1/output_gate", "softmax", {"layers[1].output_gate"}},
      {"/layers/1/gate_position", "mid", {"layers[1].gate_position", "mid"}},
      {"/hidden_act", "softmax", {"hidden_act", "softmax"}},
      {"/vocab_size", "260", {"vocab_size", "integer"}},
      {"/eos_token_id", 260, {"eos_token_id", "260"}},
      {"/bos_token_id", -1, {"bos_token_id", "-1"}},
      {"/rms_norm_eps", -1e-5, {"rms_norm_eps"}},
      {"/max_position_embeddings", 0, {"max_position_embeddings"}},
      {"/tie_word_embeddings", 1, {"tie_word_embeddings"}},
      {"/layers", 5, {"layers"}}};
  for (const BadValue& c : cases) {
    tiny_ = TinyCheckpoint::Hybrid();
    config()[json::json_pointer(c.pointer)] = c.value;
    const absl::Status status = Read();
    EXPECT_THAT(status, FailsWith(kInvalid, "config.json")) << c.pointer;
    for (const std::string& part : c.message) {
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(part));
    }
  }
}

TEST_F(RecurveFamilyTest, AnOddWidthIsFineWithoutRotation) {
  tpa()["head_dim"] = 7;
  tpa()["position"] = {{"type", "none"}};
  linear()["head_dim"] = 5;  // lrpe_cosine
  tiny_.FillTensors();
  ExpectRuns();
}

TEST_F(RecurveFamilyTest, RefusesOtherFamiliesAndListsItsOwn) {
  config()["model_type"] = "llama";
  EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json", "\"llama\"",
                                "supported: recurve"));
  config().erase("model_type");
  EXPECT_THAT(Read(), FailsWith(kInvalid, "config.json", "recurve"));
}

}  // namespace
}  // namespace recurve
