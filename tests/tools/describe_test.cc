#include "tools/recurve_model/describe.h"

#include "engine/loading/model_loader.h"
#include "engine/models/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::Not;

class DescribeTest : public testing::Test {
 protected:
  CheckpointFacts Facts(int shards = 1) {
    const std::string dir = folder_.path() + "/model";
    tiny_.Write(dir, shards);
    const auto checkpoint = Checkpoint::Open(dir);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto model = ReadModel(*checkpoint);
    EXPECT_TRUE(model.ok()) << model.status();
    return Describe(*checkpoint, *model);
  }

  TempFolder folder_;
  TinyCheckpoint tiny_ = TinyCheckpoint::Hybrid();
};

TEST(CompressRunsTest, CountsNeighbours) {
  EXPECT_EQ(CompressRuns({}), "");
  EXPECT_EQ(CompressRuns({"tpa"}), "1 x tpa");
  EXPECT_EQ(CompressRuns({"tpa", "tpa", "linear", "tpa"}),
            "2 x tpa, 1 x linear, 1 x tpa");
}

TEST_F(DescribeTest, Facts) {
  const CheckpointFacts facts = Facts();
  EXPECT_EQ(facts.family, "recurve");
  EXPECT_THAT(facts.mixers, testing::ElementsAre("tpa", "linear"));
  EXPECT_THAT(
      facts.mixer_options,
      testing::ElementsAre(
          "tpa: 2 heads of 8, query rank 3, key and value rank 2, rotated",
          "linear: 2 heads of 6 (values 8), cosine position, q silu, k silu, "
          "decay, RMS norm, gate sigmoid before it"));
  EXPECT_EQ(facts.files, 1);
  EXPECT_EQ(facts.stored.at("float32").bytes,
            static_cast<int64_t>(4 * facts.parameters));
  EXPECT_EQ(facts.stored.at("float32").tensors,
            static_cast<int64_t>(tiny_.tensors.size()));
  // As they are held, with padding: a few rows and columns of each matrix.
  EXPECT_GT(facts.cpu.weights, facts.stored_bytes);
  EXPECT_LT(facts.cpu.weights, facts.stored_bytes * 11 / 10);
  EXPECT_GT(facts.gpu.weights, facts.stored_bytes);
  // As in model_loader_test.cc.
  EXPECT_EQ(facts.cpu.cache_per_token, 2 * 2 * (2 + 8) * 4);
  // Two heads take the room of 8, and 8 features that of 16.
  EXPECT_EQ(facts.gpu.cache_per_token, 2 * 2 * (8 + 16) * 2);
  EXPECT_EQ(facts.cpu.state_per_sequence, 2 * 12 * 8 * 4);
  EXPECT_EQ(facts.gpu.state_per_sequence, 2 * 12 * 8 * 4);
  EXPECT_EQ(facts.tokenizer, "bytes");
  EXPECT_EQ(Facts(/*shards=*/3).files, 3);
}

TEST_F(DescribeTest, WeightsInMemory) {
  const CheckpointFacts wide = Facts();
  const int64_t table = 260 * 16;
  tiny_.SetDType(DType::kBFloat16);
  const CheckpointFacts narrow = Facts();
  EXPECT_EQ(narrow.stored_bytes, wide.stored_bytes / 2);
  EXPECT_LT(narrow.cpu.weights, wide.cpu.weights * 6 / 10);
  // The CPU widens all of float16 but the embedding, which is only looked up.
  tiny_.SetDType(DType::kFloat16);
  EXPECT_EQ(Facts().cpu.weights, wide.cpu.weights - 2 * table);
  EXPECT_EQ(Facts().gpu.weights, narrow.gpu.weights);
  // A tied embedding is on disk once; in memory once on the CPU, as a matrix,
  // and twice on a GPU.
  tiny_.config["tie_word_embeddings"] = true;
  tiny_.FillTensors();
  EXPECT_EQ(Facts().cpu.weights, wide.cpu.weights - 4 * table);
  EXPECT_EQ(Facts().stored_bytes, wide.stored_bytes - 4 * table);
  tiny_.SetDType(DType::kFloat16);
  EXPECT_EQ(Facts().cpu.weights, wide.cpu.weights - 4 * table);
  EXPECT_EQ(Facts().gpu.weights, narrow.gpu.weights);
}

// What the tool promises is what a server with the same types takes.
TEST_F(DescribeTest, TheServerCountsTheSame) {
  for (const DType stored :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(Name(stored));
    tiny_.SetDType(stored);
    const CheckpointFacts facts = Facts();
    ModelOptions options;
    options.path = facts.path;
    options.device = "cpu";
    EngineOptions engine;
    const auto loaded = LoadModel(options, &engine);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Capacity& capacity = loaded->capacity;
    EXPECT_EQ(facts.cpu.weights, capacity.weight_bytes);
    EXPECT_EQ(facts.cpu.cache_per_token, capacity.cache_bytes_per_token);
    EXPECT_EQ(facts.cpu.state_per_sequence, capacity.state_bytes_per_sequence);
  }
}

TEST_F(DescribeTest, TextAndJsonSayTheSame) {
  const CheckpointFacts facts = Facts();
  const std::string text = FactsText(facts);
  EXPECT_THAT(text, HasSubstr("2: 1 x tpa, 1 x linear"));
  EXPECT_THAT(text, HasSubstr("160 bytes on the CPU, 192 bytes on a GPU"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat(facts.parameters)));
  const auto json = FactsJson(facts);
  EXPECT_EQ(json["num_layers"], 2);
  EXPECT_EQ(json["tpe"], false);
  EXPECT_EQ(json["parameters"], facts.parameters);
  EXPECT_EQ(json["bos_token_id"], 256);
  EXPECT_EQ(json["stored"]["float32"]["bytes"], facts.stored_bytes);
  EXPECT_EQ(json["weight_bytes"]["cpu"], facts.cpu.weights);
  EXPECT_EQ(json["weight_bytes"]["gpu"], facts.gpu.weights);
  EXPECT_EQ(json["cache_bytes_per_token"]["cpu"], 160);
  EXPECT_EQ(json["cache_bytes_per_token"]["gpu"], 192);
}

TEST_F(DescribeTest, WhatIsNotThereIsSaid) {
  tiny_.config["layers"].erase(0);
  tiny_.config["num_hidden_layers"] = 1;
  for (const char* key : {"tokenizer", "bos_token_id", "eos_token_id"})
    tiny_.config.erase(key);
  tiny_.FillTensors();
  const CheckpointFacts facts = Facts();
  EXPECT_THAT(FactsText(facts), HasSubstr("none, token ids only"));
  EXPECT_TRUE(FactsJson(facts)["bos_token_id"].is_null());
  const auto capacity = PlanCapacity(facts, 1 << 20, 256);
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_THAT(CapacityText(facts, *capacity), Not(HasSubstr("pages")));
}

TEST(DescribeTpeTest, IsNamedBeforeTheLayers) {
  const auto checkpoint = Checkpoint::Open(
      RECURVE_SOURCE_DIR "/tests/golden/models/xmixers-linear-tpe");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto model = ReadModel(*checkpoint);
  ASSERT_TRUE(model.ok()) << model.status();
  const CheckpointFacts facts = Describe(*checkpoint, *model);
  EXPECT_THAT(FactsText(facts), HasSubstr(": tpe, then "));
  EXPECT_EQ(FactsJson(facts)["tpe"], true);
}

TEST_F(DescribeTest, Capacity) {
  const CheckpointFacts facts = Facts();
  const int64_t memory = 10 << 20;
  const auto capacity = PlanCapacity(facts, memory, 100);
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  const auto sequences = [&](int64_t weights, int64_t token) {
    const int64_t each = 2 * 64 * token + 768;
    return (memory - weights - 64 * token - 768) / each;
  };
  EXPECT_EQ(capacity->cpu->sequence_bytes, 2 * 64 * 160 + 768);
  EXPECT_EQ(capacity->cpu->sequences, sequences(facts.cpu.weights, 160));
  EXPECT_EQ(capacity->gpu.sequences, sequences(facts.gpu.weights, 192));
  EXPECT_EQ(CapacityJson(*capacity)["cpu"]["sequences"],
            sequences(facts.cpu.weights, 160));
  EXPECT_EQ(CapacityJson(*capacity)["gpu"]["sequences"],
            sequences(facts.gpu.weights, 192));
  EXPECT_THAT(CapacityText(facts, *capacity),
              HasSubstr("2 pages of 64 tokens"));
  EXPECT_TRUE(PlanCapacity(facts, memory, 256).ok());
  EXPECT_THAT(PlanCapacity(facts, memory, 257).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "--length is 257",
                        "1 to 256"));
}

TEST_F(DescribeTest, WeightsThatFitOnAGpuOnly) {
  CheckpointFacts facts = Facts();
  facts.gpu.weights = facts.cpu.weights / 2;  // larger models, in float16
  const int64_t memory = facts.cpu.weights - 1;
  const auto capacity = PlanCapacity(facts, memory, 1);
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_FALSE(capacity->cpu.has_value());
  EXPECT_TRUE(CapacityJson(*capacity)["cpu"].is_null());
  EXPECT_THAT(CapacityText(facts, *capacity),
              HasSubstr("none: the weights alone take "));
  EXPECT_EQ(capacity->gpu.spare_bytes, 64 * 192 + 768);
  EXPECT_THAT(PlanCapacity(facts, facts.gpu.weights - 1, 1).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "--memory is ",
                        "the weights alone take"));
}

}  // namespace
}  // namespace recurve
