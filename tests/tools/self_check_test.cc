#include "tools/recurve_model/self_check.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"

namespace recurve {
namespace {

using testing::ElementsAre;

class SelfCheckTest : public testing::Test {
 protected:
  absl::Status Check() {
    const std::string dir = folder_.path() + "/model";
    tiny_.Write(dir);
    stages_.clear();
    return CheckCheckpoint(
        dir, {}, "auto",
        [this](absl::string_view stage, absl::string_view /*found*/) {
          stages_.emplace_back(stage);
        });
  }

  TempFolder folder_;
  TinyCheckpoint tiny_ = TinyCheckpoint::Hybrid();
  std::vector<std::string> stages_;
};

TEST_F(SelfCheckTest, PassesAGoodCheckpoint) {
  const absl::Status status = Check();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(stages_, ElementsAre("files", "model", "load", "logits"));
}

// Checkpoints of the other families, with a TPE input layer and without.
TEST_F(SelfCheckTest, PassesOtherFamilies) {
  for (const char* name : {"t6-kvonly-partialrope-decay", "xmixers-hybrid",
                           "xmixers-linear-tpe"}) {
    const absl::Status status = CheckCheckpoint(
        std::string(RECURVE_SOURCE_DIR "/tests/golden/models/") + name, {},
        "auto", [](absl::string_view, absl::string_view) {});
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
}

TEST_F(SelfCheckTest, AShortModel) {
  for (const int length : {1, 2, 64, 65}) {
    tiny_.config["max_position_embeddings"] = length;
    const absl::Status status = Check();
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(SelfCheckTest, StopsAtTheFirstError) {
  const TinyCheckpoint good = tiny_;
  tiny_.tensors["model.final_norm.weight"].values[3] =
      std::numeric_limits<float>::quiet_NaN();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Check(), FailsWith(kInvalid, "model.final_norm.weight", "nan"));
  EXPECT_THAT(stages_, ElementsAre("files"));
  tiny_ = good;
  tiny_.tensors.erase("model.layers.0.token_norm.weight");
  EXPECT_THAT(Check(), FailsWith(kInvalid, "model.layers.0.token_norm.weight"));
  tiny_ = good;
  tiny_.config["tokenizer"] = "runes";
  EXPECT_THAT(Check(), FailsWith(kInvalid, "runes"));
  EXPECT_THAT(stages_, ElementsAre("files", "model"));
}

TEST_F(SelfCheckTest, FindsWeightsThatBreakDown) {
  // Each value is finite, their products are not.
  for (float& value : tiny_.tensors["lm_head.weight"].values) value = 3e38f;
  EXPECT_THAT(Check(), FailsWith(absl::StatusCode::kInternal, "the logit of",
                                 "expected a finite number"));
}

// Logits that depend on how many rows a step has, as those of a broken kernel
// would: on `broken_row` of longer steps they are off by one bit.
class BatchDependentRunner : public ModelRunner {
 public:
  explicit BatchDependentRunner(int64_t broken_position)
      : broken_position_(broken_position) {
    info_.vocab_size = 3;
  }
  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override { return {4, 2, 64, 0}; }
  CacheStorage& storage() override { std::abort(); }
  absl::Status Run(const StepBatch& batch, StepOutput* output) override {
    logits_.clear();
    for (const int64_t position : batch.positions) {
      const bool off = batch.num_tokens() > 1 && position == broken_position_;
      logits_.insert(logits_.end(), {1, off ? 1.0000001f : 1, 1});
    }
    output->logits = logits_;
    return absl::OkStatus();
  }

 private:
  const int64_t broken_position_;
  ModelInfo info_;
  std::vector<float> logits_;
};

TEST(CheckChunkingTest, OneBitIsEnough) {
  BatchDependentRunner good(-1);
  EXPECT_TRUE(CheckChunking(good, 71).ok());
  BatchDependentRunner broken(70);
  EXPECT_THAT(CheckChunking(broken, 71),
              FailsWith(absl::StatusCode::kInternal, "token 1 at position 70",
                        "1.00000012 when", "expected the same bits"));
}

}  // namespace
}  // namespace recurve
