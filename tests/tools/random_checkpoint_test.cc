#include "tools/recurve_model/random_checkpoint.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_loader.h"
#include "engine/models/registry.h"
#include "engine/models/tpa/tpa_layer.h"
#include "engine/program/step_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"

namespace recurve {
namespace {

// Small, with everything that the presets have.
CheckpointPlan TinyHybrid() {
  return PlanRecurve({.layers = 4,
                      .hidden = 64,
                      .inner = 96,
                      .head_dim = 16,
                      .linear_heads = 3,
                      .tpa_every = 2,
                      .tpa_heads = 5,
                      .q_rank = 3,
                      .kv_rank = 2,
                      .gate_rank = 8,
                      .vocab = 300,
                      .max_positions = 512});
}

std::map<std::string, std::string> FilesOf(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] =
        std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

// Type, shape and payload.
std::string BytesOf(const TensorView& tensor) {
  std::string bytes(Name(tensor.dtype));
  for (const int64_t dim : tensor.shape) bytes += " " + std::to_string(dim);
  return bytes.append(static_cast<const char*>(tensor.data),
                      tensor.num_elements() * SizeOf(tensor.dtype));
}

TEST(RandomCheckpointTest, TheSameSeedWritesTheSameBytes) {
  const TempFolder folder;
  RandomCheckpointOptions options;
  const auto write = [&](const char* name) {
    const auto written = WriteRandomCheckpoint(
        TinyHybrid(), folder.path() + "/" + name, options, nullptr);
    EXPECT_TRUE(written.ok()) << written.status();
    return FilesOf(folder.path() + "/" + name);
  };
  const auto first = write("first");
  EXPECT_EQ(first.size(), 2u);
  options.num_threads = 3;
  EXPECT_EQ(write("again"), first);
  options.seed = 1;
  const auto other = write("other");
  EXPECT_EQ(other.at("config.json"), first.at("config.json"));
  EXPECT_NE(other.at("model.safetensors"), first.at("model.safetensors"));
}

TEST(RandomCheckpointTest, ShardingDoesNotChangeValues) {
  const TempFolder folder;
  RandomCheckpointOptions options;
  ASSERT_TRUE(WriteRandomCheckpoint(TinyHybrid(), folder.path() + "/one",
                                    options, nullptr)
                  .ok());
  options.shard_bytes = 50'000;
  const auto written = WriteRandomCheckpoint(
      TinyHybrid(), folder.path() + "/many", options, nullptr);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_GT(written->files, 3);
  const auto one = Checkpoint::Open(folder.path() + "/one");
  const auto many = Checkpoint::Open(folder.path() + "/many");
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(many.ok()) << many.status();
  ASSERT_EQ(many->names(), one->names());
  for (const std::string& name : one->names()) {
    const auto want = one->Tensor(name);
    const auto got = many->Tensor(name);
    ASSERT_TRUE(want.ok()) << want.status();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(BytesOf(*got), BytesOf(*want)) << name;
  }
}

TEST(RandomCheckpointTest, EveryTypeIsAModelThatTellsTokensApart) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(std::string(Name(dtype)));
    const TempFolder folder;
    ModelOptions model;
    model.path = folder.path() + "/model";
    model.num_threads = 1;
    model.device = "cpu";
    RandomCheckpointOptions options;
    options.dtype = dtype;
    ASSERT_TRUE(
        WriteRandomCheckpoint(TinyHybrid(), model.path, options, nullptr).ok());
    EngineOptions engine;
    const auto loaded = LoadModel(model, &engine);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->runner->info().parameters, TinyHybrid().parameters());
    EXPECT_NE(loaded->tokenizer, nullptr);
    StepBatch batch;
    for (int32_t i = 0; i < 40; ++i) {
      batch.tokens.push_back(7 * i % 300);
      batch.positions.push_back(i);
      batch.row_sequence.push_back(0);
      batch.logit_rows.push_back(i);
    }
    batch.query_start = {0, 40};
    batch.page_table = {1};
    batch.page_table_stride = 1;
    batch.slots = {1};
    CutRuns(&batch);
    StepOutput output;
    ASSERT_TRUE(loaded->runner->Run(batch, &output).ok());
    double square = 0;
    for (const float logit : output.logits) {
      ASSERT_TRUE(std::isfinite(logit));
      square += static_cast<double>(logit) * logit;
    }
    // The planners aim at 3.
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(output.logits.size())),
                3, 0.75);
  }
}

TEST(RandomCheckpointTest, T6IsReadAsT6) {
  const CheckpointPlan plan = PlanT6({.layers = 2,
                                      .hidden = 40,
                                      .heads = 3,
                                      .head_dim = 16,
                                      .q_rank = 4,
                                      .rank = 2,
                                      .vocab = 100,
                                      .max_positions = 256});
  const TempFolder folder;
  const std::string dir = folder.path() + "/model";
  ASSERT_TRUE(WriteRandomCheckpoint(plan, dir, {}, nullptr).ok());
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto model = ReadModel(*checkpoint);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->family, "t6");
  EXPECT_EQ(model->intermediate_size, 106);
  EXPECT_EQ(model->parameters, plan.parameters());
  const TpaShape& shape = dynamic_cast<const TpaLayer&>(*model->layers[1].mixer)
                              .definition()
                              .config.shape;
  EXPECT_EQ(shape.num_heads, 3);
  EXPECT_EQ(shape.q_rank, 4);
  EXPECT_EQ(shape.kv_rank, 2);
}

TEST(RandomCheckpointTest, RefusesAFolderWithSomethingInIt) {
  const TempFolder folder;
  const std::string file = folder.Write("notes.txt", "mine");
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(
      WriteRandomCheckpoint(TinyHybrid(), folder.path(), {}, nullptr).status(),
      FailsWith(kPrecondition, folder.path(), "not empty"));
  EXPECT_EQ(FilesOf(folder.path()).size(), 1u);
  EXPECT_FALSE(WriteRandomCheckpoint(TinyHybrid(), file, {}, nullptr).ok());
}

TEST(RandomCheckpointTest, LooksAtTheDiskFirst) {
  const TempFolder folder;
  CheckpointPlan plan;
  plan.tensors.push_back({"huge", {int64_t{1} << 58}, 0, 1});
  EXPECT_THAT(WriteRandomCheckpoint(plan, folder.path() + "/huge", {}, nullptr)
                  .status(),
              FailsWith(absl::StatusCode::kResourceExhausted, "has room for"));
}

}  // namespace
}  // namespace recurve
