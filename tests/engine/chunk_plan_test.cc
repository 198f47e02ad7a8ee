#include "engine/loading/chunk_plan.h"

#include <memory>

#include "engine/loading/model_loader.h"
#include "engine/models/emit.h"
#include "engine/models/registry.h"
#include "engine/serving/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

class ChunkPlanTest : public testing::Test {
 protected:
  ChunkPlanTest() {
    tiny_.SetDType(DType::kBFloat16);
    engine_.max_num_seqs = 4;
  }
  void UseWholePrompts() {
    tiny_.config["layers"][1]["causal"] = false;
    tiny_.config["layers"][1].erase("log_decay");
    tiny_.FillTensors();
  }
  std::string path() const { return folder_.path() + "/model"; }

  // Plans for the model on that GPU; no GPU is needed.
  absl::Status Plan(const Device& device) {
    tiny_.Write(path());
    const auto checkpoint = Checkpoint::Open(path());
    if (!checkpoint.ok()) return checkpoint.status();
    const auto model = ReadModelShape(*checkpoint, {});
    if (!model.ok()) return model.status();
    const auto plan = Lower(Emit(*model), device);
    multiple_ = plan.chunk_multiple;
    return PlanChunks(plan, &engine_);
  }
  int64_t Multiple(const Device& device) {
    const absl::Status status = Plan(device);
    EXPECT_TRUE(status.ok()) << status;
    return multiple_;
  }

  TempFolder folder_;
  TinyCheckpoint tiny_ = TinyCheckpoint::Hybrid();
  EngineOptions engine_;
  int64_t multiple_ = 0;
};

TEST_F(ChunkPlanTest, OnTheCpuChunksEndAnywhere) {
  EXPECT_EQ(Multiple({}), 1);
  engine_.max_num_batched_tokens = engine_.max_num_seqs;
  engine_.max_chunk_tokens = 1;
  EXPECT_EQ(Multiple({}), 1);
}

Device Hopper() {
  Device device;
  device.gpu = device.hopper = true;
  device.pages = DType::kBFloat16;
  return device;
}

TEST_F(ChunkPlanTest, OnHopperByTheTypeOfTheMatrices) {
  EXPECT_EQ(Multiple(Hopper()), 64);
  Device other = Hopper();
  other.hopper = false;
  EXPECT_EQ(Multiple(other), 1);
  Device finer = Hopper();
  finer.weights = DType::kFloat32;
  EXPECT_EQ(Multiple(finer), 1);
  // The embedding is not multiplied; one matrix that is makes them mixed.
  tiny_.tensors["model.embed_tokens.weight"].dtype = DType::kFloat32;
  EXPECT_EQ(Multiple(Hopper()), 64);
  tiny_.tensors["lm_head.weight"].dtype = DType::kFloat32;
  EXPECT_EQ(Multiple(Hopper()), 1);
  Device chosen = Hopper();
  chosen.weights = DType::kBFloat16;
  EXPECT_EQ(Multiple(chosen), 64);
  // Without linear attention there is nothing to compute by chunks.
  tiny_.config["layers"].erase(1);
  tiny_.config["num_hidden_layers"] = 1;
  tiny_.FillTensors();
  tiny_.SetDType(DType::kBFloat16);
  EXPECT_EQ(Multiple(Hopper()), 1);
}

TEST_F(ChunkPlanTest, RefusesTooFewTokensBeforeAnythingIsLoaded) {
  engine_.max_chunk_tokens = 63;
  EXPECT_THAT(Plan(Hopper()),
              FailsWith(kInvalid, "--max-chunk-tokens is 63", "on cuda",
                        "by 64 tokens", "at least 64"));
  engine_.max_chunk_tokens = 0;
  engine_.max_num_batched_tokens = 66;
  EXPECT_THAT(Plan(Hopper()),
              FailsWith(kInvalid, "--max-num-batched-tokens is 66", "on cuda",
                        "by 64 tokens", "at least 67"));
  engine_.max_chunk_tokens = 0;
  engine_.max_num_batched_tokens = 67;
  EXPECT_TRUE(Plan(Hopper()).ok());
  EXPECT_EQ(engine_.max_chunk_tokens, 67);
}

TEST_F(ChunkPlanTest, AWholePromptHasAMultipleAtLeast) {
  UseWholePrompts();
  tiny_.SetDType(DType::kBFloat16);
  engine_.max_num_batched_tokens = 67;
  engine_.max_chunk_tokens = 0;
  ASSERT_TRUE(Plan(Hopper()).ok());
  EXPECT_EQ(engine_.max_chunk_tokens, 64);
}

TEST_F(ChunkPlanTest, AChunkIsAStepIfNobodySays) {
  engine_.max_chunk_tokens = 0;
  ASSERT_TRUE(Plan({}).ok());
  EXPECT_EQ(engine_.max_chunk_tokens, 512);
}

TEST_F(ChunkPlanTest, WholePromptsLeaveRoomForAllThatDecode) {
  UseWholePrompts();
  const auto tokens = [&](int64_t batched, int64_t sequences, int64_t chunk) {
    engine_.max_num_batched_tokens = batched;
    engine_.max_num_seqs = sequences;
    engine_.max_chunk_tokens = chunk;
    const absl::Status status = Plan({});
    EXPECT_TRUE(status.ok()) << status;
    return engine_.max_chunk_tokens;
  };
  EXPECT_EQ(tokens(512, 32, 0), 481);
  EXPECT_EQ(tokens(512, 1, 0), 512);     // nothing else runs
  EXPECT_EQ(tokens(512, 32, 512), 512);  // set explicitly
  EXPECT_EQ(tokens(512, 256, 0), 257);
  // Half of a step, if that is more.
  EXPECT_EQ(tokens(512, 257, 0), 256);
  EXPECT_EQ(tokens(512, 512, 0), 256);
  EXPECT_EQ(tokens(1, 1, 0), 1);
}

// What an engine then takes, and what is said of it.
TEST_F(ChunkPlanTest, LongerWholePromptsAreRefused) {
  UseWholePrompts();
  tiny_.Write(path());
  ModelOptions options;
  options.path = path();
  options.device = "cpu";
  options.num_threads = 1;
  engine_.max_num_batched_tokens = 100;
  engine_.max_chunk_tokens = 0;
  auto loaded = LoadModel(options, &engine_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->capacity.max_whole_tokens, 97);
  EXPECT_EQ(loaded->capacity.sure_whole_tokens, 97);
  const auto engine =
      Engine::Create(engine_, std::move(loaded->runner), nullptr, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->limits().max_prompt_tokens, 97);
  // A limit set explicitly may exceed the room that is certain.
  engine_.max_chunk_tokens = 100;
  loaded = LoadModel(options, &engine_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->capacity.max_whole_tokens, 100);
  EXPECT_EQ(loaded->capacity.sure_whole_tokens, 97);
}

}  // namespace
}  // namespace recurve
