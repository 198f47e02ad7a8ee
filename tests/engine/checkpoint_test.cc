#include "engine/checkpoint/checkpoint.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/check_finite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr auto kNotFound = absl::StatusCode::kNotFound;

// One bfloat16 [2] tensor for each name; all elements are `bits`.
std::string Weights(const std::vector<std::string>& names,
                    uint16_t bits = 0x3f80) {
  std::string header = "{";
  std::string payload;
  for (const std::string& name : names) {
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", name,
                    R"(":{"dtype":"BF16","shape":[2],"data_offsets":[)",
                    payload.size(), ",", payload.size() + 4, "]}");
    for (int i = 0; i < 2; ++i) {
      payload.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    }
  }
  return SafetensorsBytes(header + "}", payload);
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { folder_.Write("config.json", R"({"model_type":"x"})"); }

  absl::Status Open() { return Checkpoint::Open(folder_.path()).status(); }
  void WriteIndex(absl::string_view weight_map) {
    folder_.Write("model.safetensors.index.json",
                  absl::StrCat(R"({"metadata":{"total_size":8},"weight_map":)",
                               weight_map, "}"));
  }
  void Remove(const std::string& name) {
    std::filesystem::remove(folder_.path() + "/" + name);
  }

  TempFolder folder_;
};

TEST_F(CheckpointTest, OpensASingleFile) {
  folder_.Write("model.safetensors", Weights({"b", "a"}));
  absl::StatusOr<Checkpoint> opened = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint checkpoint = std::move(*opened);
  EXPECT_EQ(*checkpoint.config().String("model_type"), "x");
  EXPECT_FALSE(checkpoint.generation_config().has_value());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b"));
  EXPECT_TRUE(checkpoint.Has("a"));
  EXPECT_FALSE(checkpoint.Has("c"));
  EXPECT_THAT(checkpoint.FileOf("a"), HasSubstr("/model.safetensors"));
  EXPECT_THAT(Floats(*checkpoint.Tensor("a", {2})), ElementsAre(1.0f, 1.0f));
}

// An error only where a model needs it.
TEST_F(CheckpointTest, OpensWithATensorThatCannotBeRead) {
  folder_.Write(
      "model.safetensors",
      SafetensorsBytes(
          R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})",
          "1234"));
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->names(), ElementsAre("a"));
  EXPECT_TRUE(checkpoint->Has("a"));
  ASSERT_NE(checkpoint->FindOther("a"), nullptr);
  EXPECT_EQ(checkpoint->FindOther("a")->type, "F8_E4M3");
  EXPECT_EQ(checkpoint->FindOther("b"), nullptr);
  const auto refused =
      FailsWith(absl::StatusCode::kInvalidArgument, "model.safetensors",
                "tensor 'a'", "dtype is 'F8_E4M3'; supported: F32, F16, BF16");
  EXPECT_THAT(checkpoint->Tensor("a").status(), refused);
  EXPECT_THAT(checkpoint->Tensor("a", {4}).status(), refused);
  EXPECT_THAT(checkpoint->CheckAllUsed({}),
              FailsWith(absl::StatusCode::kInvalidArgument, "'a'"));
  EXPECT_TRUE(checkpoint->CheckAllUsed({"a"}).ok());
}

TEST_F(CheckpointTest, ReadsTheGenerationConfig) {
  folder_.Write("model.safetensors", Weights({"a"}));
  folder_.Write("generation_config.json", R"({"eos_token_id":[1,2]})");
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(*checkpoint->generation_config()->IntList("eos_token_id", 0, 9),
              ElementsAre(1, 2));
  folder_.Write("generation_config.json", "{");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "generation_config.json"));
}

TEST_F(CheckpointTest, TensorErrorsSayWhatWasExpected) {
  folder_.Write(
      "model.safetensors",
      SafetensorsBytes(
          R"({"i":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
          R"("w":{"dtype":"F16","shape":[1,2],"data_offsets":[4,8]}})",
          std::string(8, '\0')));
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(checkpoint->Tensor("w", {1, 2}).ok());
  EXPECT_TRUE(checkpoint->Tensor("i").ok());
  EXPECT_THAT(checkpoint->Tensor("w", {2, 1}).status(),
              FailsWith(kInvalid, "model.safetensors", "tensor 'w'",
                        "float16 [1, 2]", "expected", "[2, 1]"));
  EXPECT_THAT(checkpoint->Tensor("i", {1}).status(),
              FailsWith(kInvalid, "int32 [1]", "bfloat16 [1]"));
  EXPECT_THAT(checkpoint->Tensor("v").status(),
              FailsWith(kNotFound, "model.safetensors", "tensor 'v'"));
  EXPECT_THAT(checkpoint->Tensor("v", {3}).status(),
              FailsWith(kNotFound, "'v' is missing; expected shape [3]"));
}

TEST_F(CheckpointTest, NamesUnusedTensors) {
  folder_.Write("model.safetensors",
                Weights({"a", "b", "c", "d", "e", "f", "g"}));
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(
      checkpoint->CheckAllUsed({"a", "b", "c", "d", "e", "f", "g", "h"}).ok());
  EXPECT_THAT(checkpoint->CheckAllUsed({"a", "b", "c", "d", "e", "f"}),
              FailsWith(kInvalid, "model.safetensors", "1 tensor ", "'g'"));
  const absl::Status status = checkpoint->CheckAllUsed({"a"});
  EXPECT_THAT(status,
              FailsWith(kInvalid, "6 tensors", "'b', 'c', 'd', 'e', 'f', …"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("'g'")));
}

TEST_F(CheckpointTest, OpensShards) {
  folder_.Write("m-1.safetensors", Weights({"a", "c"}));
  folder_.Write("m-2.safetensors", Weights({"b"}, 0x4000));
  folder_.Write("consolidated.safetensors", "not listed, so not read");
  WriteIndex(
      R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"})");
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->names(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(checkpoint->FileOf("b"), HasSubstr("/m-2.safetensors"));
  EXPECT_THAT(checkpoint->FileOf("none"), HasSubstr("index.json"));
  EXPECT_THAT(Floats(*checkpoint->Tensor("b")), ElementsAre(2.0f, 2.0f));
}

TEST_F(CheckpointTest, RefusesAnIndexThatDisagreesWithItsShards) {
  folder_.Write("m-1.safetensors", Weights({"a"}));
  folder_.Write("m-2.safetensors", Weights({"b"}));
  WriteIndex(R"({"a":"m-1.safetensors"})");
  EXPECT_TRUE(Open().ok()) << Open();
  WriteIndex(R"({"a":"m-1.safetensors","z":"m-1.safetensors"})");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "m-1.safetensors: tensor 'z'",
                                "missing", "index.json"));
  folder_.Write("m-1.safetensors", Weights({"a", "more"}));
  WriteIndex(R"({"a":"m-1.safetensors"})");
  EXPECT_THAT(Open(),
              FailsWith(kInvalid, "m-1.safetensors: tensor 'more'", "nowhere"));
  folder_.Write("m-1.safetensors", Weights({"a", "b"}));
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "m-1.safetensors: tensor 'b'",
                                "under 'm-2.safetensors'"));
  WriteIndex(R"({"a":"m-3.safetensors"})");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "m-3.safetensors", "No such file"));
  folder_.Write("m-3.safetensors", "broken");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "m-3.safetensors"));
}

TEST_F(CheckpointTest, RefusesShardsOutsideTheDirectory) {
  folder_.Write("m.safetensors", Weights({"a"}));
  for (const char* name :
       {"../m.safetensors", "/etc/m.safetensors", "./m.safetensors",
        "sub/m.safetensors", "..", "", "m..safetensors/..", "m.bin",
        "..\\\\m.safetensors", "m.safetensors\\u0000.safetensors"}) {
    WriteIndex(absl::StrCat(R"({"a":")", name, "\"}"));
    EXPECT_THAT(Open(), FailsWith(kInvalid, "index.json", "weight_map.'a'",
                                  "in the same directory"))
        << name;
  }
}

TEST_F(CheckpointTest, RefusesMalformedIndexes) {
  WriteIndex("{}");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "index.json: weight_map is empty"));
  WriteIndex("[]");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "weight_map is a list of 0"));
  WriteIndex(R"({"a":3})");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "weight_map.'a' is 3"));
  WriteIndex(R"({"a":"m.safetensors","a":"m.safetensors"})");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "'a' more than once"));
  folder_.Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "weight_map is missing"));
}

TEST_F(CheckpointTest, AnIndexBesideTheOneFileMustBeOfIt) {
  folder_.Write("model.safetensors", Weights({"a"}));
  WriteIndex(R"({"a":"model.safetensors"})");
  EXPECT_TRUE(Open().ok());
  WriteIndex(R"({"a":"model.safetensors","b":"m.safetensors"})");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "both"));
}

// Half a copy of a folder of links, as caches of models have them.
TEST_F(CheckpointTest, ALinkToNowhereIsNoAbsentFile) {
  folder_.Write("model.safetensors", Weights({"a"}));
  EXPECT_TRUE(Open().ok());
  std::filesystem::create_symlink("blobs/123",
                                  folder_.path() + "/generation_config.json");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "generation_config.json",
                                "symbolic link to blobs/123"));
  std::filesystem::remove(folder_.path() + "/model.safetensors");
  std::filesystem::create_symlink("blobs/4",
                                  folder_.path() + "/model.safetensors");
  std::filesystem::remove(folder_.path() + "/generation_config.json");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "model.safetensors", "blobs/4"));
  std::filesystem::remove(folder_.path() + "/model.safetensors");
  std::filesystem::create_symlink("blobs/5",
                                  folder_.path() + "/m-1.safetensors");
  WriteIndex(R"({"a":"m-1.safetensors"})");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "m-1.safetensors",
                                "symbolic link to blobs/5"));
}

TEST_F(CheckpointTest, NamesGitLfsPointers) {
  folder_.Write("model.safetensors",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "model.safetensors", "Git LFS"));
}

TEST_F(CheckpointTest, SaysWhatItLookedFor) {
  const absl::Status nothing = Open();
  EXPECT_THAT(nothing,
              FailsWith(kNotFound, folder_.path(), "model.safetensors and ",
                        "model.safetensors.index.json"));
  EXPECT_THAT(std::string(nothing.message()), Not(HasSubstr("converted")));
  folder_.Write("pytorch_model.bin", "x");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "'pytorch_model.bin'",
                                "must be converted to safetensors"));
  Remove("pytorch_model.bin");
  folder_.Write("ckpt.pt", "x");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "'ckpt.pt'", "converted"));
  // Part of a download, or a file of another name.
  for (int i = 1; i <= 6; ++i) {
    folder_.Write(absl::StrCat("m-", i, ".safetensors"), Weights({"a"}));
  }
  EXPECT_THAT(Open(), FailsWith(kNotFound, "found 'm-1.safetensors', ",
                                "'m-5.safetensors', …: the index is missing",
                                "another name than model.safetensors"));
}

TEST_F(CheckpointTest, RefusesBadDirectoriesAndConfigs) {
  EXPECT_THAT(Checkpoint::Open(folder_.path() + "/none").status(),
              FailsWith(kNotFound, "/none does not exist"));
  EXPECT_THAT(Checkpoint::Open(folder_.path() + "/config.json").status(),
              FailsWith(kInvalid, "not a directory"));
  folder_.Write("model.safetensors", Weights({"a"}));
  EXPECT_TRUE(Open().ok());
  folder_.Write("config.json", "[1]");
  EXPECT_THAT(Open(), FailsWith(kInvalid, "config.json", "a list of 1"));
  Remove("config.json");
  EXPECT_THAT(Open(), FailsWith(kNotFound, "config.json"));
}

TEST(DemoModelTest, Opens) {
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(RECURVE_SOURCE_DIR "/deploy/models/demo");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(*checkpoint->config().Int("vocab_size", 1, 1 << 20), 258);
  EXPECT_EQ(checkpoint->config().ObjectList("layers")->size(), 6u);
  // Three outside the layers; 12 in a TPA layer, 12 in a linear one.
  EXPECT_EQ(checkpoint->names().size(), 3u + 6u * 12u);
  EXPECT_TRUE(checkpoint->Tensor("lm_head.weight", {258, 256}).ok());
  EXPECT_TRUE(checkpoint->Tensor("model.final_norm.weight", {256}).ok());
  EXPECT_TRUE(
      checkpoint
          ->Tensor("model.layers.0.token_mixer.k_head_proj.weight", {8, 256})
          .ok());
  EXPECT_TRUE(
      checkpoint
          ->Tensor("model.layers.1.token_mixer.output_gate.1.weight", {256, 64})
          .ok());
  for (const std::string& name : checkpoint->names()) {
    EXPECT_EQ(checkpoint->Tensor(name)->dtype, DType::kBFloat16) << name;
    EXPECT_TRUE(
        CheckFinite(*checkpoint->Tensor(name), name, checkpoint->FileOf(name))
            .ok());
  }
}

TEST(DemoModelTest, ExpectedOutputsOpen) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(
      RECURVE_SOURCE_DIR "/deploy/models/demo/expected.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 12u);
  const TensorView& prompt = file->tensors().at("prompt_def");
  EXPECT_EQ(prompt.dtype, DType::kInt32);
  int32_t first = 0;
  std::memcpy(&first, prompt.data, sizeof(first));
  EXPECT_EQ(first, 256);  // every prompt starts with BOS
  EXPECT_THAT(file->tensors().at("logits_def").shape, ElementsAre(160, 258));
}

}  // namespace
}  // namespace recurve
