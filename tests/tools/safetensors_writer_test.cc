#include "tools/recurve_model/safetensors_writer.h"

#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"

namespace recurve {
namespace {

using testing::ElementsAre;

std::vector<TensorSpec> SomeTensors() {
  return {{"a", DType::kFloat32, {3}},
          {"b", DType::kBFloat16, {2, 2}},
          {"empty", DType::kFloat32, {0, 4}},
          {"large", DType::kFloat32, {100}},
          {"z", DType::kFloat16, {1}}};
}

// Byte i of tensor t is 31 t + i.
TensorSource Counting(const std::vector<TensorSpec>& tensors) {
  return [&tensors](size_t tensor, int64_t first, int64_t count, char* out) {
    const int64_t size = SizeOf(tensors[tensor].dtype);
    for (int64_t i = 0; i < count * size; ++i) {
      out[i] = static_cast<char>(31 * static_cast<int64_t>(tensor) +
                                 first * size + i);
    }
  };
}

TEST(PlanShardsTest, FillsFilesInTurn) {
  const auto tensors = SomeTensors();  // of 12, 8, 0, 400 and 2 bytes
  const auto one = PlanShards(tensors, 1000);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].file, "model.safetensors");
  EXPECT_THAT(one[0].tensors, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(one[0].payload_bytes, 422);

  const auto exact = PlanShards(tensors, 20);
  ASSERT_EQ(exact.size(), 3u);
  EXPECT_EQ(exact[0].file, "model-00001-of-00003.safetensors");
  EXPECT_THAT(exact[0].tensors, ElementsAre(0, 1, 2));
  EXPECT_THAT(exact[1].tensors, ElementsAre(3));  // larger than the limit
  EXPECT_THAT(exact[2].tensors, ElementsAre(4));
  EXPECT_THAT(PlanShards(tensors, 19)[0].tensors, ElementsAre(0));
}

class WriteSafetensorsTest : public testing::Test {
 protected:
  // What the engine's reader makes of the folder.
  void ExpectReadsBack(int64_t shard_bytes, size_t files) {
    SCOPED_TRACE(shard_bytes);
    const TempFolder folder;
    folder.Write("config.json", "{}");
    const auto shards = PlanShards(tensors_, shard_bytes);
    EXPECT_EQ(shards.size(), files);
    int64_t progress = 0;
    const absl::Status status =
        WriteSafetensors(folder.path(), tensors_, shards, Counting(tensors_), 2,
                         [&](int64_t bytes) {
                           EXPECT_GT(bytes, progress);
                           progress = bytes;
                         });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(progress, 422);
    const auto read = Checkpoint::Open(folder.path());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->names().size(), tensors_.size());
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const auto view = read->Tensor(tensors_[t].name);
      ASSERT_TRUE(view.ok()) << view.status();
      EXPECT_EQ(view->dtype, tensors_[t].dtype);
      EXPECT_EQ(view->shape, tensors_[t].shape);
      std::string expected;
      for (int64_t i = 0; i < tensors_[t].bytes(); ++i)
        expected.push_back(static_cast<char>(31 * static_cast<int64_t>(t) + i));
      EXPECT_EQ(
          std::string(static_cast<const char*>(view->data), expected.size()),
          expected);
    }
  }

  const std::vector<TensorSpec> tensors_ = SomeTensors();
};

TEST_F(WriteSafetensorsTest, OneFile) { ExpectReadsBack(1000, 1); }
TEST_F(WriteSafetensorsTest, Shards) { ExpectReadsBack(20, 3); }
TEST_F(WriteSafetensorsTest, OneTensorAFile) { ExpectReadsBack(1, 5); }

TEST_F(WriteSafetensorsTest, PayloadsAreAligned) {
  const auto header = SafetensorsHeader(tensors_, PlanShards(tensors_, 999)[0]);
  EXPECT_EQ(header.size() % 8, 0u);
}

// More than one round of blocks on every thread.
TEST(WriteSafetensorsLargeTest, BlocksJoinSeamlessly) {
  const std::vector<TensorSpec> tensors = {{"t", DType::kFloat32, {1'500'001}}};
  const TempFolder folder;
  const auto shards = PlanShards(tensors, int64_t{1} << 30);
  const absl::Status status = WriteSafetensors(
      folder.path(), tensors, shards,
      [](size_t, int64_t first, int64_t count, char* out) {
        for (int64_t i = 0; i < count; ++i) {
          const auto value = static_cast<float>(first + i);
          std::memcpy(out + 4 * i, &value, 4);
        }
      },
      3, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  const auto file = SafetensorsFile::Open(folder.path() + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorView& view = file->tensors().at("t");
  int64_t wrong = 0;
  for (int64_t i = 0; i < view.num_elements(); ++i)
    wrong += view.Element(i) != static_cast<float>(i) ? 1 : 0;
  EXPECT_EQ(wrong, 0);
}

TEST_F(WriteSafetensorsTest, AFailureLeavesNothingBehind) {
  const TempFolder folder;
  const auto shards = PlanShards(tensors_, 20);
  // The second file cannot be made: a folder has its name.
  std::filesystem::create_directory(folder.path() + "/" + shards[1].file);
  folder.Write(shards[1].file + "/keep", "x");
  const absl::Status status = WriteSafetensors(folder.path(), tensors_, shards,
                                               Counting(tensors_), 1, nullptr);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr(shards[1].file));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/" + shards[0].file));
}

TEST(WriteWholeFileTest, NamesWhatItCannotWrite) {
  EXPECT_THAT(std::string(WriteWholeFile("/nowhere/file", "x").message()),
              testing::HasSubstr("/nowhere/file"));
  // Opens, and refuses the bytes.
  EXPECT_THAT(WriteWholeFile("/dev/full", "x"),
              FailsWith(absl::StatusCode::kResourceExhausted, "/dev/full"));
}

}  // namespace
}  // namespace recurve
